// SPDX-License-Identifier: Apache-2.0
// What this host has for ranks: cores, descriptors, memory.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::elastic {

// Those that this process may run on; never none.
std::vector<int> usable_cores();
// Throws Infeasible where so many ranks do not fit.
void check_machine(int ranks);
// Processes that the kernel has killed for memory, since it started.
std::int64_t num_killed_for_memory();

}  // namespace shoal::elastic
