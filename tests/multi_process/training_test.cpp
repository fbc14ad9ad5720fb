// SPDX-License-Identifier: Apache-2.0
// Trainers of ranks that are processes, over shared memory and over Gloo, train as one device does.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/comm/skipping_test.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/rendezvous/host_store.h"
#include "shoal/train/verify.h"
#include "tests/multi_process/processes.h"
#include "tests/oracle/cases.h"

namespace training_test {

using namespace shoal;

namespace {

struct Strategy {
  const char* name;
  int shard, tensor;
  int zero_stage;
  int microbatches;
  int pipeline = 1;
  const char* schedule = "1f1b";
};

constexpr Strategy kStrategies[] = {
    {"data parallel", 1, 1, 0, 1},
    {"data parallel, accumulated", 1, 1, 0, 3},
    {"ZeRO-1, accumulated", 2, 1, 1, 3},
    {"ZeRO-2", 2, 1, 2, 1},
    {"ZeRO-2, accumulated", 2, 1, 2, 3},
    {"ZeRO-3", 2, 1, 3, 1},
    {"tensor", 1, 2, 0, 1},
    {"ZeRO-3 x tensor, accumulated", 2, 2, 3, 3},
    {"pipeline", 1, 1, 0, 3, 2},
    {"pipeline x ZeRO-3", 2, 1, 3, 3, 2},
    {"pipeline x tensor", 1, 2, 0, 3, 2},
    {"interleaved pipeline", 1, 1, 0, 3, 2, "interleaved_1f1b"},
    {"looped pipeline x ZeRO-3", 2, 1, 3, 3, 2, "looped_bfs"},
    {"interleaved pipeline of four", 1, 1, 0, 3, 4, "interleaved_1f1b"},
    {"ZB-H1 x ZeRO-3", 2, 1, 3, 3, 2, "zb_h1"},
    {"ZBV", 1, 1, 0, 3, 2, "zbv"},
    {"ZBV of four", 1, 1, 0, 5, 4, "zbv"},
};

}  // namespace

static StepResult take(Trainer& trainer, const std::vector<Batch>& microbatches) {
  return microbatches.size() == 1 ? trainer.step(microbatches[0]) : trainer.step_over(microbatches);
}

static Trainer trainer_of(const cases::Net& net, std::optional<Parallelism> parallelism) {
  return Trainer(net.module, net.loss, AdamW{.lr = 0.01},
                 {.clip_norm = 0.5, .seed = 3, .parallelism = std::move(parallelism)});
}

// Two steps of GPT-2 on this rank, and alone. Throws where they differ.
static void train_and_compare(const Strategy& strategy, comm::Communicator& world) {
  at::set_num_threads(1);
  const auto make = [] {
    cases::Net net = cases::gpt2(0.25);
    net.module->to(at::kDouble);
    return net;
  };
  Parallelism parallelism{
      .mesh = mesh_of(world.size(), -1, strategy.shard, strategy.tensor, strategy.pipeline),
      .world = &world,
      .limit = std::chrono::seconds(60)};
  if (strategy.tensor > 1) {
    std::ifstream file("recipes/plans/gpt2_tensor.plan");
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    parallelism.plan = compile::plan_from_text(text, "gpt2_tensor.plan");
  }
  parallelism.plan.zero_stage = strategy.zero_stage;
  parallelism.plan.schedule = strategy.schedule;
  const cases::Net ours = make(), theirs = make();
  Trainer together = trainer_of(ours, parallelism), alone = trainer_of(theirs, {});
  for (int step = 0; step < 2; ++step) {
    torch::manual_seed(7 + static_cast<std::uint64_t>(step));
    std::vector<Batch> whole, parts;
    for (int i = 0; i < strategy.microbatches; ++i) {
      at::Tensor tokens = at::randint(61, {5 - i % 2, 9}, at::kLong);
      whole.push_back({tokens.slice(1, 0, 8).contiguous(), tokens.slice(1, 1).contiguous()});
      parts.push_back(map_tensors(whole.back(), [&](const std::string&, const at::Tensor& tensor) {
        const auto [begin, end] = samples_of(parallelism.mesh, world.rank(), tensor.size(0));
        return tensor.slice(0, begin, end).clone();
      }));
    }
    const auto wanted = train::record_of(alone, take(alone, whole));
    const auto got = train::record_of(together, take(together, parts));
    const auto comparison = train::compare(got, wanted, 1e-9);
    SHOAL_CHECK(comparison.largest <= 1, Internal, strategy.name, ", step ", step, ": ", comparison.worst,
                " differs by ", comparison.error);
  }
}

TEST_CASE("processes over shared memory and over Gloo train as one device does") {
  for (const Strategy& strategy : kStrategies)
    for (const bool over_gloo : {false, true}) {
      CAPTURE(std::string(strategy.name));
      CAPTURE(over_gloo);
      const int size = strategy.shard * strategy.tensor * strategy.pipeline == 4 ? 4 : 2;
      rendezvous::HostStore store;
      const auto codes = tests::run_processes(size, [&](int rank) {
        const auto world = over_gloo
                               ? comm_c10d::make_gloo(store, {.name = "train", .rank = rank, .size = size})
                               : comm::shm_communicator(store, rank, size, {.job = "train"});
        train_and_compare(strategy, *world);
      });
      CHECK(codes == std::vector<int>(static_cast<std::size_t>(size)));
    }
}

TEST_CASE("a process that leaves out a send is told on both ranks at once, with its micro-batch") {
  for (const bool over_gloo : {false, true}) {
    CAPTURE(over_gloo);
    const auto begin = std::chrono::steady_clock::now();
    rendezvous::HostStore store;
    const auto codes = tests::run_processes(2, [&](int rank) {
      auto ranks = over_gloo ? comm_c10d::make_gloo(store, {.name = "skip", .rank = rank, .size = 2})
                             : comm::shm_communicator(store, rank, 2, {.job = "skip"});
      comm::Skipping world(std::move(ranks), std::make_shared<int>(rank == 0 ? 5 : 1000));
      const Strategy strategy = {"pipeline", 1, 1, 0, 4, 2};
      std::string error = "none";
      try {
        train_and_compare(strategy, world);
      } catch (const Error& caught) {
        error = caught.what();
      }
      SHOAL_CHECK(error.find("micro-batch 2, message 1), rank 1 receive(") != std::string::npos &&
                      error.find("micro-batch 1, message 1)") != std::string::npos,
                  Internal, error);
    });
    CHECK(codes == std::vector<int>(2));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));  // train_and_compare waits 60
  }
}

}  // namespace training_test
