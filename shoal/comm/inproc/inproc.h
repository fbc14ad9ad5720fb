// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: the reference that says what each operation means. The rank that comes
// last to a call does the whole of it, for all ranks, under one lock.
//
//   auto ranks = comm::inproc(4);   // ranks[r] goes to thread r
#pragma once

#include <vector>

#include "shoal/comm/communicator.h"

namespace shoal::comm {

// Communicators of one group, by rank; each is one thread's. Throws InvalidInput for fewer than one.
std::vector<std::unique_ptr<Communicator>> inproc(int size);

}  // namespace shoal::comm
