// SPDX-License-Identifier: Apache-2.0
// Training in float16: what overflows is skipped, on all ranks alike, and the loss is scaled by less.
#include "shoal/train/loss_scale.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"

namespace loss_scale_test {

using namespace shoal;
using at::Tensor;
namespace fs = std::filesystem;

static const rewrite::Precision kFloat16 = {.compute = DType::Float16, .scale = 1024, .grows_after = 5};

TEST_CASE("a scale is half as much after an overflow, and twice as much after so many updates in a row") {
  train::LossScale scale(kFloat16);
  for (int update = 0; update < 5; ++update) {
    CHECK(scale.state() == LossScaleState{1024, update});
    scale.count_update();
  }
  CHECK(scale.state() == LossScaleState{2048, 0});
  scale.count_update();
  CHECK(scale.count_overflow());
  CHECK(scale.state() == LossScaleState{1024, 0});
  CHECK(scale.tensor().item<float>() == 1024);
  for (int overflow = 1; overflow < 19; ++overflow) CHECK(scale.count_overflow());
  CHECK(scale.overflows() == 19);
  CHECK_FALSE(scale.count_overflow());
  CHECK(error_of([&] { scale.set({3, 0}); }).find("a loss scale of 3 after 0 updates is none") !=
        std::string::npos);
  scale.set({0x1p62, 4});
  scale.count_update();
  CHECK(scale.state() == LossScaleState{0x1p62, 0});  // no more than float32 has room for
}

// Samples whose loss counts that many times overflow in backward, and the mean of all does not.
static Tensor loss_of(torch::nn::Sequential& model, const Batch& batch) {
  const Tensor errors = at::mse_loss(model->forward(batch["x"].tensor()), batch["y"], at::Reduction::None);
  return (errors.mean(1) * batch["weight"].tensor()).mean();
}

static torch::nn::Sequential net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(torch::nn::LinearOptions(8, 16).bias(false)),
                               torch::nn::BatchNorm1d(16), torch::nn::Dropout(0.2), torch::nn::Linear(16, 5));
}

constexpr double kNever = 1e30, kScaledDown = 1e7;

// `heavy`: the sample that overflows, -1 for none.
static Batch batch_of(std::int64_t step, std::int64_t heavy, double factor = kNever) {
  constexpr std::int64_t rows = 12;
  at::manual_seed(static_cast<std::uint64_t>(100 + step));
  Tensor weight = at::ones({rows});
  if (heavy >= 0) weight[heavy] = factor;
  return Batch{{"x", at::randn({rows, 8})}, {"y", at::randn({rows, 5})}, {"weight", weight}};
}

static TrainerOptions in_float16(Parallelism parallelism = {}) {
  parallelism.plan.precision = kFloat16;
  return {.parallelism = parallelism};
}

static std::vector<Tensor> all_of(const Trainer& trainer) {
  std::vector<Tensor> tensors;
  const TrainingState state = trainer.state();
  for (const auto* each : {&state.model, &state.optimizer})
    for (const auto& [name, tensor] : *each) tensors.push_back(tensor.clone());
  return tensors;
}

static bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& one, const Tensor& other) { return one.equal(other); });
}

TEST_CASE("an update that overflows changes the scale alone, also one of several micro-batches") {
  for (const bool in_two : {false, true}) {
    CAPTURE(in_two);
    auto model = net();
    Trainer trainer(model, loss_of, AdamW{.lr = 0.01}, in_float16());
    const auto step = [&](std::int64_t number, std::int64_t heavy) {
      const std::vector<Batch> both = {batch_of(number, -1), batch_of(number, heavy)};
      return in_two ? trainer.step_over(both) : trainer.step(both[1]);
    };
    CHECK(step(0, -1).loss_scale == 1024);
    const auto before = all_of(trainer);
    const StepResult result = step(1, 4);
    CHECK(result.skipped);
    CHECK(result.step == 1);
    CHECK(result.loss_scale == 1024);
    CHECK(std::isfinite(result.loss));
    CHECK_FALSE(std::isfinite(result.grad_norm));
    CHECK(same_bits(before, all_of(trainer)));
    CHECK(trainer.progress().loss_scale == LossScaleState{512, 0});
    CHECK(trainer.gradients().empty());
    const StepResult next = step(1, -1);
    CHECK_FALSE(next.skipped);
    CHECK(next.step == 2);
    CHECK(next.loss_scale == 512);
    CHECK_FALSE(same_bits(before, all_of(trainer)));
  }
}

TEST_CASE("gradients are those of the loss, whatever it was scaled by") {
  std::vector<std::vector<Tensor>> gradients;
  for (const double scale : {1.0, 64.0, 4096.0}) {
    auto model = net();
    TrainerOptions options = in_float16();
    options.parallelism->plan.precision.scale = scale;
    Trainer trainer(model, loss_of, options);
    trainer.backward(batch_of(0, -1));
    gradients.emplace_back();
    for (const Tensor& parameter : model->parameters()) gradients.back().push_back(parameter.grad());
  }
  auto model = net();
  Trainer exact(model, loss_of, TrainerOptions{});
  exact.backward(batch_of(0, -1));
  for (std::size_t i = 0; i < model->parameters().size(); ++i) {
    const Tensor wanted = model->parameters()[i].grad();
    for (const auto& found : gradients)
      CHECK((found[i] - wanted).abs().max().item<double>() < 0.02 * wanted.abs().max().item<double>() + 1e-6);
  }
}

TEST_CASE("backward makes gradients that overflow again, by a smaller scale") {
  auto model = net();
  Trainer trainer(model, loss_of, in_float16());
  trainer.backward(batch_of(0, 4, kScaledDown));
  CHECK(trainer.progress().loss_scale->scale < 1024);
  for (const Tensor& parameter : model->parameters()) CHECK(parameter.grad().isfinite().all().item<bool>());
}

TEST_CASE("what no scale mends ends after twenty steps, with the module where it begins") {
  for (const bool in_two : {false, true}) {
    auto model = net();
    Trainer trainer(model, loss_of, AdamW{.lr = 0.01}, in_float16());
    Batch batch = batch_of(0, -1);
    batch["x"].tensor()[0][0] = 1e30;  // more than float16 has, in forward
    const std::vector<Batch> both = {batch, batch};
    int skipped = 0;
    const std::string error = error_of([&] {
      while (skipped < 100) {
        (in_two ? trainer.step_over(both) : trainer.step(batch)).skipped ? ++skipped : skipped = 100;
      }
    });
    CHECK(skipped == 19);
    CHECK_MESSAGE(contains(error, "first appears in module \"0\""), error);
    CHECK_MESSAGE(
        contains(error, "the last 20 updates in float16 were skipped, at a loss scale of 0.00195312 now"),
        error);
  }
}

TEST_CASE("a hook that clips a gradient is refused, as it would see the scaled one") {
  auto model = net();
  model->parameters()[0].register_hook([](const Tensor& gradient) { return gradient.clamp(-1, 1); });
  Trainer trainer(model, loss_of, AdamW{}, in_float16());
  CHECK(
      contains(error_of([&] { trainer.step(batch_of(0, -1)); }), "float16 scales the loss, and aten::clamp"));
}

namespace {

struct Run {
  std::vector<bool> skipped;
  std::vector<double> losses;
  std::vector<LossScaleState> scales;
};

}  // namespace

// Of a mesh's rank, which has its part of each batch.
static Run trained(Trainer& trainer, const sharding::Mesh& mesh, int rank, std::span<const Batch> batches) {
  Run run;
  const auto [begin, end] = samples_of(mesh, rank, 12);
  for (const Batch& all : batches) {
    const auto part = [&, first = begin, size = end - begin](const char* item) {
      return all[item].tensor().narrow(0, first, size);
    };
    const StepResult result =
        trainer.step(Batch{{"x", part("x")}, {"y", part("y")}, {"weight", part("weight")}});
    run.skipped.push_back(result.skipped);
    run.losses.push_back(result.loss);
    run.scales.push_back(*trainer.progress().loss_scale);
  }
  return run;
}

// Judged line 7 of mixed precision.
TEST_CASE("twenty overflows at random steps and ranks are skipped on 4 ranks of ZeRO-3 as on one device") {
  constexpr std::size_t kSteps = 60;
  constexpr std::size_t kOverflows = 20;
  constexpr int kRanks = 4;
  std::mt19937_64 random(7);
  std::set<std::size_t> heavy;
  while (heavy.size() < kOverflows) heavy.insert(random() % kSteps);
  std::vector<Batch> batches;  // made here: all threads share one generator
  for (std::size_t step = 0; step < kSteps; ++step)
    batches.push_back(batch_of(static_cast<std::int64_t>(step),
                               heavy.contains(step) ? static_cast<std::int64_t>(random() % 12) : -1));
  const auto first_half = std::span(batches).first(kSteps / 2),
             second_half = std::span(batches).last(kSteps / 2);
  auto model = net();
  Trainer alone(model, loss_of, AdamW{.lr = 0.01}, in_float16());
  const Run expected = trained(alone, {}, 0, batches);
  CHECK(std::ranges::count(expected.skipped, true) == kOverflows);
  std::set<double> scales;
  for (const auto& state : expected.scales) scales.insert(state.scale);
  CHECK(scales.size() > 5);

  const fs::path folder = fs::temp_directory_path() / concat("shoal_loss_scale_test_", ::getpid());
  std::vector<std::vector<Tensor>> states(kRanks), resumed(kRanks);
  std::vector<std::shared_ptr<torch::nn::SequentialImpl>> models;
  for (int rank = 0; rank < 2 * kRanks; ++rank) models.push_back(net().ptr());
  const sharding::Mesh mesh = mesh_of(kRanks, 1, kRanks, 1);
  comm::run_as_threads(comm::inproc(kRanks), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto trainer_of = [&](std::size_t which) {
      return Trainer(torch::nn::Sequential(models[which]), loss_of, AdamW{.lr = 0.01},
                     in_float16({.mesh = mesh, .world = &world}));
    };
    Trainer trainer = trainer_of(rank);
    Run run = trained(trainer, mesh, world.rank(), first_half);
    trainer.save(folder);
    const Run rest = trained(trainer, mesh, world.rank(), second_half);
    run.skipped.insert(run.skipped.end(), rest.skipped.begin(), rest.skipped.end());
    run.losses.insert(run.losses.end(), rest.losses.begin(), rest.losses.end());
    run.scales.insert(run.scales.end(), rest.scales.begin(), rest.scales.end());
    CHECK(run.skipped == expected.skipped);
    CHECK((run.scales == expected.scales));
    for (std::size_t i = 0; i < run.losses.size(); ++i)
      CHECK(std::abs(run.losses[i] - expected.losses[i]) < 0.02 * expected.losses[i]);
    states[rank] = all_of(trainer);
    trainer.wait_for_saves();

    Trainer again = trainer_of(kRanks + rank);
    CHECK(again.load(folder).has_value());
    const Run second = trained(again, mesh, world.rank(), second_half);
    CHECK(second.skipped == rest.skipped);
    CHECK((second.scales == rest.scales));
    CHECK(second.losses == rest.losses);
    resumed[rank] = all_of(again);
  });
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    CHECK(same_bits(states[rank], states[0]));
    CHECK(same_bits(states[rank], resumed[rank]));
  }
  const auto of_one = all_of(alone);
  REQUIRE(of_one.size() == states[0].size());
  for (std::size_t i = 0; i < of_one.size(); ++i)
    CHECK((of_one[i] - states[0][i]).abs().max().item<double>() <
          0.05 * of_one[i].abs().max().item<double>() + 1e-3);
  fs::remove_all(folder);
}

}  // namespace loss_scale_test
