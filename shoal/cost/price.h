// SPDX-License-Identifier: Apache-2.0
// What an instruction costs on a device, and a message between some: max(operations, bytes) by the device's
// rates, as a roofline has it (Williams et al. 2009), beside floors, and alpha + bytes / beta (Hockney 1994).
#pragma once

#include <vector>

#include "shoal/cost/cluster.h"
#include "shoal/program/program.h"
#include "shoal/sharding/collective.h"

namespace shoal::cost {

// Bytes that a kernel reads and writes: all its inputs and outputs; of what looks rows up, those rows.
double bytes_touched(const program::Instruction& instruction, const program::Program& program);

// Of all but messages, Waits and Frees, which take none.
double seconds_of(const program::Instruction& instruction, const program::Program& program, const Kind& kind);

// Of products in that dtype; of a device that no file says it of, in the first that one does.
const Rate& arithmetic_of(const Kind& kind, DType dtype);

// Where ranks that speak with each other are.
struct Spread {
  int ranks = 1;
  int hosts = 1;
  int on_a_host = 1;    // the most of them on one
  int devices = 1;      // of that host: the others speak at the same time, in groups of their own
  bool is_near = true;  // of a send: both ends are on one host
};
Spread spread_of(const std::vector<int>& ranks, const Cluster& cluster);

// Between hosts each byte crosses a link once for a host (comm/hierarchy/hierarchy.h).
double seconds_of(const sharding::Message& message, const Spread& spread, const Cluster& cluster);

}  // namespace shoal::cost
