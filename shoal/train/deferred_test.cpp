// SPDX-License-Identifier: Apache-2.0
// A trainer of a model that was made under deferred_init.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include <memory>
#include <string>
#include <vector>

#include "shoal/capture/deferred.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/runtime/allocator.h"
#include "shoal/train/trainer.h"

namespace deferred_test {

using namespace shoal;
using at::Tensor;

namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kWidth = 256, kLayers = 8, kTensor = kWidth * kWidth * 4;

struct Deep : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  Tensor scale = register_buffer("scale", torch::rand({kWidth, 8}));

  Deep() {
    for (std::int64_t i = 0; i < kLayers; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
  }

  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = layer(x).tanh();
    return x.matmul(scale);
  }
};

Tensor loss_of(std::shared_ptr<Deep>& model, const Batch& batch) {
  return model->forward(batch["x"].tensor()).square().mean();
}

std::shared_ptr<Deep> made(bool is_deferred) {
  torch::manual_seed(5);
  const auto make = [] { return std::make_shared<Deep>(); };
  return is_deferred ? deferred_init(make) : make();
}

// Bytes that live at most while `act` runs, beside those that did before.
template <class Act>
std::int64_t peak_of(const Act& act) {
  runtime::install_allocator();
  const auto before = runtime::memory_counts().live_bytes;
  runtime::reset_peak();
  act();
  return runtime::memory_counts().peak_bytes - before;
}

// Of ranks that have a stage each, or share the batch.
sharding::Mesh mesh_with(bool is_pipeline) {
  return is_pipeline ? mesh_of(kRanks, 1, 1, 1, kRanks) : mesh_of(kRanks, 1, kRanks, 1);
}

// The losses of three steps on all ranks, as rank 0 has them.
std::vector<double> losses_of(bool is_deferred, int zero_stage, bool is_pipeline = false) {
  std::vector<std::shared_ptr<Deep>> models;
  for (int rank = 0; rank < kRanks; ++rank) models.push_back(made(is_deferred));
  std::vector<double> losses;
  comm::run_as_threads(comm::inproc(kRanks), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    Trainer trainer(
        models[static_cast<std::size_t>(world.rank())], loss_of, AdamW{.lr = 0.01},
        {.parallelism = Parallelism{
             .mesh = mesh_with(is_pipeline), .world = &world, .plan = {.zero_stage = zero_stage}}});
    for (int step = 1; step <= 3; ++step) {
      const Tensor x = at::arange(4 * kWidth, at::kFloat).sin().mul(step).reshape({4, kWidth});
      const double loss = trainer.step({{"x", is_pipeline ? x : x.narrow(0, 2 * world.rank(), 2)}}).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

}  // namespace

TEST_CASE("a deferred model trains as an eager one, on one device and on ranks") {
  const Batch batch = {{"x", at::ones({4, kWidth})}};
  std::vector<double> losses;
  for (const bool is_deferred : {false, true}) {
    Trainer trainer(made(is_deferred), loss_of, AdamW{.lr = 0.01});
    trainer.step(batch);
    losses.push_back(trainer.step(batch).loss);
  }
  CHECK(losses[0] == losses[1]);
  for (const int zero_stage : {0, 3}) CHECK(losses_of(true, zero_stage) == losses_of(false, zero_stage));
  CHECK(losses_of(true, 0, true) == losses_of(false, 0, true));
}

TEST_CASE(
    "with ZeRO-3, and in a pipeline, no rank has more of a deferred model than its part and one tensor") {
  bool is_pipeline = false;
  SUBCASE("ZeRO-3") {}
  SUBCASE("pipeline") { is_pipeline = true; }
  std::vector<std::shared_ptr<Deep>> models;
  const std::int64_t building = peak_of([&] {
    for (int rank = 0; rank < kRanks; ++rank) models.push_back(made(true));
  });
  const std::int64_t small = kRanks * (kLayers * kWidth + 8 * kWidth) * 4 + (64 << 10);  // biases; states
  CHECK(building <= kTensor + small);
  const std::int64_t training = peak_of([&] {
    comm::run_as_threads(comm::inproc(kRanks), [&](comm::Communicator& world) {
      Trainer trainer(models[static_cast<std::size_t>(world.rank())], loss_of, SGD{.lr = 0.01},
                      {.parallelism = Parallelism{.mesh = mesh_with(is_pipeline),
                                                  .world = &world,
                                                  .plan = {.zero_stage = is_pipeline ? 0 : 3}}});
      models[static_cast<std::size_t>(world.rank())] = nullptr;
    });
  });
  // All ranks together: the model once, and of each a tensor that is being cut, with its copy of the part.
  CHECK(training <= kLayers * kTensor + kRanks * 3 * kTensor / 2 + small);
}

}  // namespace deferred_test
