// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/pipeline.h"

#include <doctest/doctest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <limits>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"

using namespace shoal;
namespace nn = torch::nn;

static nn::Sequential mlp() {
  torch::manual_seed(5);
  nn::Sequential net(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 3));
  net->to(at::kDouble);
  return net;
}
static at::Tensor loss_of(nn::Sequential& net, const Batch& batch) {
  return nn::functional::mse_loss(net->forward(batch[0].tensor()), batch[1].tensor());
}
static Batch batch_of(int samples) {
  const at::Tensor x = at::linspace(-2, 2, samples * 6, at::kDouble).view({samples, 6});
  return Batch{x.sin(), x.narrow(1, 0, 3).cos()};
}

// On each of so many ranks, with a stage each.
static void on_stages(int stages, const std::function<void(nn::Sequential, const TrainerOptions&)>& body) {
  std::vector<nn::Sequential> nets;
  for (int rank = 0; rank < stages; ++rank) nets.push_back(mlp());
  comm::run_as_threads(comm::inproc(stages), [&](comm::Communicator& world) {
    Parallelism parallelism;
    parallelism.mesh = mesh_of(stages, 1, 1, 1, stages);
    parallelism.world = &world;
    TrainerOptions options;
    options.parallelism = parallelism;
    body(nets[static_cast<std::size_t>(world.rank())], options);
  });
}

TEST_CASE("backward and evaluate of stages give what one device gives") {
  nn::Sequential alone = mlp();
  Trainer one(alone, loss_of);
  const double wanted = one.backward(batch_of(6)), evaluated = one.evaluate(batch_of(4));
  on_stages(3, [&](nn::Sequential net, const TrainerOptions& options) {
    Trainer trainer(net, loss_of, options);
    CHECK(trainer.evaluate(batch_of(4)) == doctest::Approx(evaluated).epsilon(1e-12));
    CHECK(trainer.backward(batch_of(6)) == doctest::Approx(wanted).epsilon(1e-12));
    const auto ours = net->parameters(), theirs = alone->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CHECK(at::allclose(ours[i], theirs[i]));
      CHECK(at::allclose(ours[i].grad(), theirs[i].grad(), 1e-12));
    }
  });
}

TEST_CASE("a rank has the parameters of its stage, and the model has all of them at the end") {
  on_stages(2, [&](nn::Sequential net, const TrainerOptions& options) {
    const auto before = net->parameters()[0].clone();
    {
      Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
      trainer.step(batch_of(4));
      CHECK_THROWS_AS(net->parameters()[0].sum(), c10::Error);  // in parts, as those of ZeRO-3
    }
    CHECK_FALSE(at::equal(net->parameters()[0], before));
  });
}

TEST_CASE("what a pipeline cannot do is told") {
  CHECK_THROWS_WITH_AS(
      train::timeline_of("zbv", 2, 4),
      "pipeline: schedule zbv has several stages a rank or a backward in two parts, which the "
      "trainer cannot run yet; those it runs: gpipe, 1f1b, eager_1f1b",
      Error);
  compile::Plan plan;
  CHECK(train::most_microbatches(batch_of(3), 4, plan) == 3);
  CHECK(train::microbatches_of(batch_of(5), 2, plan)[0][0].tensor().size(0) == 3);
  CHECK_THROWS_AS(train::microbatches_of(batch_of(3), 4, plan), Error);
  on_stages(2, [&](nn::Sequential net, const TrainerOptions& options) {
    Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
    CHECK_THROWS_AS(trainer.step_with({.loss = 1}), Error);
  });
}

TEST_CASE("a loss that is not finite is told when all micro-batches have run, and nothing has changed") {
  on_stages(2, [&](nn::Sequential net, const TrainerOptions& options) {
    Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
    trainer.step(batch_of(4));
    const auto before = trainer.state().model;
    Batch bad = batch_of(4);
    bad[0].tensor()[0][0] = std::numeric_limits<double>::quiet_NaN();
    CHECK_THROWS_AS(trainer.step(bad), Error);
    for (const auto& [name, tensor] : trainer.state().model) CHECK(at::equal(tensor, before.at(name)));
    CHECK(trainer.step(batch_of(4)).step == 2);
  });
}
