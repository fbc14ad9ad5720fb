// SPDX-License-Identifier: Apache-2.0
// What a trainer takes for a model: holders, modules on the stack, views; and what a loss function gives back.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include <string>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"

namespace module_view_test {

using namespace shoal;
using at::Tensor;

namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(4, 6));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.5));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(6, 3));

  Net() {
    torch::manual_seed(2);
    for (auto& parameter : parameters()) parameter.data().normal_();
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x) { return out(drop(in(x).tanh())); }
};

LossAndOutputs loss_of(Net& net, const Batch& batch) {
  const Tensor logits = net.forward(batch["x"]);
  return {at::cross_entropy_loss(logits, batch["y"].tensor()), {{"logits", logits}}};
}

Batch batch_of(int seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return Batch{{"x", at::randn({8, 4}, at::kDouble)}, {"y", at::randint(0, 3, {8}, at::kLong)}};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a module on the stack trains as one that is held") {
  Net net;
  const auto held = std::make_shared<Net>();
  Trainer trainer(net, loss_of, AdamW{.lr = 1e-2});
  Trainer other(
      held, [](std::shared_ptr<Net>& model, const Batch& batch) { return loss_of(*model, batch).loss; },
      AdamW{.lr = 1e-2});
  for (int step = 0; step < 3; ++step)
    CHECK(trainer.step(batch_of(step)).loss == other.step(batch_of(step)).loss);
  CHECK(at::equal(net.in->weight, held->in->weight));
  CHECK(other.outputs().empty());
}

TEST_CASE("what a loss function returns beside the loss is kept, of steps and of evaluations") {
  Net net;
  Trainer trainer(net, loss_of, SGD{.lr = 0.1});
  const Batch batch = batch_of(0);
  trainer.step(batch);
  const Tensor trained = trainer.outputs().at("logits").clone();
  const double loss = trainer.evaluate(batch);
  const Tensor logits = trainer.outputs().at("logits");
  CHECK(net.is_training());
  CHECK_FALSE(at::allclose(logits, trained));
  CHECK(trainer.outputs().size() == 1);

  net.eval();
  const at::NoGradGuard no_grad;
  const auto wanted = loss_of(net, batch);
  CHECK(loss == doctest::Approx(wanted.loss.item<double>()));
  CHECK(at::allclose(logits, wanted.outputs.at("logits")));
  const double accuracy = logits.argmax(1).eq(batch["y"].tensor()).to(at::kDouble).mean().item<double>();
  CHECK(accuracy >= 0);
}

TEST_CASE("outputs are what the loss gave: not what the model wrote into its batch") {
  Net net;
  Trainer trainer(
      net,
      [](Net& model, const Batch& batch) {
        const Tensor y = model.forward(batch["x"]);
        batch["seen"].tensor().add_(y.detach().sum());
        return LossAndOutputs{y.square().mean(), {{"y", y}}};
      },
      SGD{.lr = 0.1});
  trainer.step(Batch{{"x", at::ones({2, 4}, at::kDouble)}, {"seen", at::zeros({}, at::kDouble)}});
  CHECK(trainer.outputs().size() == 1);
  CHECK(trainer.outputs().contains("y"));
}

TEST_CASE("a view of a module is one call, and is evaluated in evaluation mode") {
  const auto net = std::make_shared<Net>();
  Trainer trainer(view_of(net, [net](const Batch& batch) { return loss_of(*net, batch); }),
                  {{{}, SGD{.lr = 0.1}}});
  const Batch batch = batch_of(0);
  trainer.step(batch);
  const double loss = trainer.evaluate(batch);
  CHECK(net->drop->is_training());
  net->eval();
  const at::NoGradGuard no_grad;
  CHECK(loss == doctest::Approx(loss_of(*net, batch).loss.item<double>()));
}

TEST_CASE("a module on the stack has its parameters again when its trainer on ranks ends") {
  comm::run_as_threads(comm::inproc(2), [](comm::Communicator& world) {
    at::set_num_threads(1);
    Net net;
    {
      Trainer trainer(
          net, [](Net& model, const Batch& batch) { return model.forward(batch["x"]).square().mean(); },
          SGD{.lr = 0.1},
          {.parallelism = Parallelism{.mesh = mesh_of(2, 1, 2, 1),
                                      .world = &world,
                                      .plan = {.zero_stage = 3},
                                      .limit = std::chrono::seconds(20)}});
      trainer.step(Batch{{"x", at::ones({2, 4}, at::kDouble)}});
    }
    CHECK(at::isfinite(net.in->weight).all().item<bool>());
    CHECK(net.in->weight.numel() == 24);
  });
}

TEST_CASE("nothing that is undefined or null is taken") {
  Net net;
  Trainer without(net, [](Net&, const Batch&) { return Tensor(); }, SGD{});
  CHECK(contains(error_of([&] { without.step(batch_of(0)); }), "returned an undefined tensor"));
  Trainer empty(
      net,
      [](Net& model, const Batch& batch) {
        return LossAndOutputs{model.forward(batch["x"]).sum(), {{"attention", Tensor()}}};
      },
      SGD{});
  CHECK(contains(error_of([&] { empty.step(batch_of(0)); }), "output attention"));
  const auto null = [] {
    Trainer trainer(
        std::shared_ptr<Net>(), [](std::shared_ptr<Net>&, const Batch&) { return at::zeros({}); }, SGD{});
  };
  CHECK(contains(error_of(null), "the module is null"));
}

}  // namespace module_view_test
