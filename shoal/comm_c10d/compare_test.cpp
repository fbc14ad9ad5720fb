// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other before data moves, where the engine has no tags: NCCL's way, here over Gloo.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm_c10d/communicator.h"
#include "shoal/comm_c10d/store.h"
#include "shoal/rendezvous/memory_store.h"

using namespace shoal;
using namespace std::chrono_literals;

static std::unique_ptr<comm::Communicator> without_tags(rendezvous::Store& store, int rank, int size) {
  auto with = c10d::ProcessGroupGloo::Options::create(20s);
  with->devices = {c10d::ProcessGroupGloo::createDeviceForInterface("lo")};
  auto keys = c10::make_intrusive<comm_c10d::PrefixedStore>(store, "gloo/", 20s);
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(keys, rank, size, with);
  return comm_c10d::make_communicator({.name = "g", .rank = rank, .size = size}, {.backend = gloo}, store,
                                      {});
}

TEST_CASE("where an engine has no tags a message's two ends show each other what they call, by its tag too") {
  rendezvous::MemoryStore store;
  std::vector<std::string> errors(2);
  std::vector<int> received;
  {
    std::vector<std::jthread> threads;
    for (const int rank : {0, 1})
      threads.emplace_back([&, rank] {
        const auto ranks = without_tags(store, rank, 2);
        errors[static_cast<std::size_t>(rank)] = error_of([&] {
          for (std::uint16_t microbatch = 0; microbatch < 4; ++microbatch) {
            std::int32_t value = microbatch;
            const comm::Tag tag = {.microbatch = microbatch, .message = 1};
            if (rank == 0 && microbatch != 2) ranks->send({&value, 1, DType::Int32}, 1, tag)->wait(20s);
            if (rank == 0) continue;
            value = -1;
            ranks->receive({&value, 1, DType::Int32}, 0, tag)->wait(20s);
            received.push_back(value);
          }
        });
      });
  }
  CHECK(received == std::vector{0, 1});
  CHECK(errors ==
        std::vector<std::string>(2,
                                 "comm: call 2: rank 0 send(i32 x 1, to 1, micro-batch 3, message 1), rank 1 "
                                 "receive(i32 x 1, from 0, micro-batch 2, message 1)"));
}
