// SPDX-License-Identifier: Apache-2.0
// What a trainer takes for a model: holders, modules on the stack, views; and what a loss function gives back.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

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

TEST_CASE("two threads in one trainer are told of each other, and calls may stand in each other") {
  Net net;
  std::promise<void> inside, go_on;
  Trainer trainer(
      net, [](Net& model, const Batch& batch) { return model.forward(batch["x"]).square().mean(); }, SGD{});
  std::thread other([&] {
    trainer.step_over(1,
                      [&](std::size_t) {
                        CHECK(trainer.state().step == 0);  // of the same thread
                        inside.set_value();
                        go_on.get_future().wait();
                        return batch_of(0);
                      },
                      {});
  });
  inside.get_future().wait();
  CHECK(
      error_of([&] { trainer.evaluate(batch_of(0)); }) ==
      "trainer: evaluate() is called while another thread is in step_over() of the same trainer. Remedy: one "
      "thread at a time; a mutex around both, or a trainer each");
  go_on.set_value();
  other.join();
  CHECK(trainer.step(batch_of(0)).step == 2);
}

TEST_CASE("inference mode around a step changes nothing") {
  const auto loss_after = [](bool inferring) {
    torch::manual_seed(1);
    Net net;
    Trainer trainer(
        net, [](Net& model, const Batch& batch) { return model.forward(batch["x"]).square().mean(); },
        SGD{.lr = 0.1});
    const c10::InferenceMode mode(inferring);
    const Batch batch = batch_of(0);
    trainer.step(batch);
    trainer.backward(batch);
    return trainer.evaluate(batch);
  };
  CHECK(loss_after(true) == loss_after(false));
}

TEST_CASE("ranks that call different functions of their trainers are told which") {
  const auto end_of = [](const std::function<void(Trainer&)>& act_of_rank_1) {
    std::vector<std::string> ends(2);
    comm::run_as_threads(comm::inproc(2), [&](comm::Communicator& world) {
      at::set_num_threads(1);
      Net net;
      Trainer trainer(
          net, [](Net& model, const Batch& batch) { return model.forward(batch["x"]).square().mean(); },
          SGD{.lr = 0.1},
          {.parallelism =
               Parallelism{.mesh = mesh_of(2, 1, 2, 1), .world = &world, .limit = std::chrono::seconds(20)}});
      ends[static_cast<std::size_t>(world.rank())] = error_of([&] {
        if (world.rank() == 1)
          act_of_rank_1(trainer);
        else
          trainer.step(batch_of(0));
      });
    });
    CHECK(ends[0] != "");
    return ends[1];
  };
  CHECK(end_of([](Trainer& trainer) { trainer.evaluate(batch_of(0)); }) ==
        "trainer: ranks differ in what they were given: rank 0 has 'a call of step()', rank 1 has 'a call of "
        "evaluate()'. Every rank has to run the same code with the same settings");
  CHECK(contains(end_of([](Trainer& trainer) { trainer.save("/nowhere", "", 0); }),
                 "trainer: this rank is in save(), another one calls something else (comm: call "));
}

}  // namespace module_view_test
