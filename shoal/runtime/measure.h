// SPDX-License-Identifier: Apache-2.0
// A rank's program run by itself, on zeros, to hold what was said of its memory against the allocator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/program/memory.h"
#include "shoal/sharding/mesh.h"

namespace shoal::runtime {

// An instruction whose memory was said wrongly.
struct Misjudged {
  std::string instruction;  // as program::to_text has it
  program::MemoryUse said, was;
};

struct Measured {
  std::int64_t said = 0, was = 0;  // the most at once
  std::vector<Misjudged> misjudged;
};

// Runs a step twice without the rank's peers (comm/record); the second time is held against `said`.
Measured measure(const program::Program& program, const program::Memory& said, const sharding::Mesh& mesh,
                 int rank);

std::string to_text(const Measured& measured);

}  // namespace shoal::runtime
