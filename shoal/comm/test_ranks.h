// SPDX-License-Identifier: Apache-2.0
// For the tests of this folder: communicators of ranks that are threads, and what each of them ends with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/communicator.h"
#include "shoal/comm/shm/segment.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/rendezvous/memory_store.h"

namespace shoal::comm {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// `mappings`: a segment is mapped once for all ranks, so that the thread sanitizer sees what they share;
// null: once a rank, as between processes.
inline Ranks shm_ranks(int size,
                       const std::shared_ptr<shm::Mappings>& mappings = std::make_shared<shm::Mappings>()) {
  rendezvous::MemoryStore store;
  Ranks ranks(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      ranks[static_cast<std::size_t>(rank)] = shm_communicator(
          store, rank, size, {.job = "test", .limit = std::chrono::seconds{20}, .mappings = mappings});
    });
  threads.clear();
  return ranks;
}

// "peer lost: …" or "ok" of each rank.
inline std::vector<std::string> ends_of(const Ranks& ranks,
                                        const std::function<void(Communicator&)>& function) {
  std::vector<std::string> ends(ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        function(*ranks[r]);
        ends[r] = "ok";
      } catch (const Error& error) {
        ends[r] = concat(name_of(error.kind()), ": ", error.what());
      }
    });
  threads.clear();
  return ends;
}

}  // namespace shoal::comm
