// SPDX-License-Identifier: Apache-2.0
// What a program sends, counted at the communicator: every call that a kernel of it makes, as it is made.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/comm/communicator.h"
#include "shoal/program/program.h"
#include "shoal/sharding/collective.h"

namespace shoal::matrix {

struct Sent {
  // By the ranks of the group, in its order: as sharding::to_text of the message, without the axis.
  std::map<std::vector<int>, std::vector<std::string>> calls;
  std::int64_t bytes = 0;  // that this rank has sent to others
  int step = 0;            // another number for each: some instructions have nothing to send after all
  friend bool operator==(const Sent&, const Sent&) = default;
};

// Passes all on, and counts what is called from instructions of a program, which tell where they are
// (comm/located.h). Borrows `sent`, as its subgroups do.
std::unique_ptr<comm::Communicator> counted(std::unique_ptr<comm::Communicator> ranks, Sent& sent);

// Adds what the program says that it will send when it is run.
void add_said(const program::Program& program, const sharding::Mesh& mesh, int rank, Sent& said);

}  // namespace shoal::matrix
