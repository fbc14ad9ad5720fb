// SPDX-License-Identifier: Apache-2.0
// Ranks as threads. As processes: tests/multi_process/comm_shm.cpp.
#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/comm/conformance.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/comm/shm/segment.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/rendezvous/memory_store.h"

using namespace shoal;
using namespace shoal::comm;
using namespace std::chrono_literals;

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// `one_address`: a segment is mapped once for all ranks, so that the thread sanitizer sees what they share;
// else once a rank, as between processes.
static Ranks shm_ranks(int size, bool one_address = true) {
  rendezvous::MemoryStore store;
  Ranks ranks(static_cast<std::size_t>(size));
  const auto mappings = one_address ? std::make_shared<shm::Mappings>() : nullptr;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      ranks[static_cast<std::size_t>(rank)] =
          shm_communicator(store, rank, size, {.job = "test", .limit = 20s, .mappings = mappings});
    });
  threads.clear();
  return ranks;
}

TEST_CASE("inproc conforms") {
  for (int size = 1; size <= 9; ++size) {
    CAPTURE(size);
    CHECK_NOTHROW(run_as_threads(inproc(size), [](Communicator& rank) { conform(rank); }));
  }
}

TEST_CASE("shm conforms, ranks as threads") {
  for (int size = 1; size <= 9; ++size) {
    CAPTURE(size);
    CHECK_NOTHROW(run_as_threads(shm_ranks(size, size % 2 == 0), [](Communicator& rank) { conform(rank); }));
  }
}

TEST_CASE("random sequences of calls end with every bit right") {
  for (int size = 2; size <= 5; ++size)
    CHECK_NOTHROW(run_as_threads(shm_ranks(size), [&](Communicator& rank) {
      for (std::uint64_t seed = 0; seed < 500; ++seed)
        random_calls(rank, seed * 10 + static_cast<std::uint64_t>(size), 8);
    }));
}
