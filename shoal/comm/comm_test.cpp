// SPDX-License-Identifier: Apache-2.0
// Conformance, ranks as threads. As processes: shm/process_test.cpp.
#include <doctest/doctest.h>

#include "shoal/base/sanitized.h"
#include "shoal/comm/conformance.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/pool.h"
#include "shoal/comm/ranks.h"
#include "shoal/comm/test_ranks.h"

using namespace shoal;
using namespace shoal::comm;
using namespace std::chrono_literals;

TEST_CASE("inproc conforms") {
  for (const int size : kIsSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    CAPTURE(size);
    CHECK_NOTHROW(run_as_threads(inproc(size), [&](Communicator& rank) {
      Conformance options;
      if (size > 4) options.dtypes = {DType::Float32, DType::Float16};
      conform(rank, options);
    }));
  }
}

TEST_CASE("shm conforms, ranks as threads") {
  for (const int size : kIsSanitized ? std::vector{2, 3} : std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    CAPTURE(size);
    const auto mappings = size % 2 == 0 || kIsSanitized ? std::make_shared<shm::Mappings>() : nullptr;
    CHECK_NOTHROW(run_as_threads(shm_ranks(size, mappings), [](Communicator& rank) { conform(rank); }));
  }
}

TEST_CASE("a communicator with a progress thread conforms") {
  CHECK_NOTHROW(run_as_threads(
      inproc(2), [](Communicator& rank) { conform(*make_pool(rank, 1).front(), {.large = 20001}); }));
  CHECK_NOTHROW(run_as_threads(shm_ranks(3), [](Communicator& rank) {
    conform(*make_pool(rank, 1).front(), {.dtypes = {DType::Float32}, .large = 20001});
  }));
}

TEST_CASE("10,000 random sequences of calls on 2 to 5 ranks end with every bit right") {
  const int num_sequences = kIsSanitized ? 200 : 10000;
  for (int size = 2; size <= 5; ++size) {
    CAPTURE(size);
    CHECK_NOTHROW(run_as_threads(shm_ranks(size), [&](Communicator& rank) {
      for (int seed = size; seed < num_sequences; seed += 4)
        random_calls(rank, static_cast<std::uint64_t>(seed), 6);
    }));
  }
  CHECK_NOTHROW(run_as_threads(inproc(3), [](Communicator& rank) { random_calls(rank, 7, 300); }));
}
