// SPDX-License-Identifier: Apache-2.0
// Ranks of one host, over shared memory: processes of one user, or threads.
//
// They meet through the store (each rank calls `shm_communicator` with the same job and size), and need it no
// longer afterwards. Reductions have the same bits on every rank, whatever the buffers, and whatever the
// instruction set. A rank whose process ends is noticed within milliseconds. What the files here do:
// shm/algorithm.h, shm/group.h.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "shoal/comm/communicator.h"
#include "shoal/rendezvous/store.h"

namespace shoal::comm {

namespace shm {
class Mappings;
}

struct ShmOptions {         // of a group; alike on all its ranks, but for mappings
  std::string job = "job";  // names the memory (in /proc/PID/maps) and the store's keys
  std::chrono::nanoseconds limit = std::chrono::seconds{60};  // to meet, here and in subgroups
  // Ranks that are threads may share what they map: each segment then has one address in the process.
  std::shared_ptr<shm::Mappings> mappings = nullptr;
};

// Bytes that a rank's communicator of so many takes at most for itself: what the ranks tell each other in,
// which the first one has, and what calls go through. `allocate` comes on top, in whole pages.
std::int64_t shm_bytes(int size);

// This rank's of `size` ranks, at most 128; all call it. Throws Timeout where some do not come, naming them,
// and InvalidInput for more ranks, or a rank outside of them.
std::unique_ptr<Communicator> shm_communicator(rendezvous::Store& store, int rank, int size,
                                               const ShmOptions& options = {});

}  // namespace shoal::comm
