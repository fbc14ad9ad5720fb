// SPDX-License-Identifier: Apache-2.0
// Gradients without an update, held against loss.backward() of a copy of the model.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include <cmath>
#include <limits>

#include "shoal/base/error_test.h"
#include "shoal/capture/capture.h"
#include "shoal/train/trainer.h"

namespace backward_test {

using namespace shoal;
using at::Tensor;
using torch::nn::Sequential;

static Sequential net() {
  torch::manual_seed(3);
  Sequential layers(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::Tanh(),
                    torch::nn::Linear(16, 4));
  layers->to(at::kDouble);
  return layers;
}

static Sequential net_with_dropout() {
  torch::manual_seed(3);
  Sequential layers(torch::nn::Linear(8, 64), torch::nn::Dropout(0.5), torch::nn::Linear(64, 4));
  layers->to(at::kDouble);
  return layers;
}

static Tensor squared_error(Sequential& model, const Batch& batch) {
  return at::mse_loss(model->forward(batch["x"].tensor()), batch["y"]);
}

static Batch batch_of(int number, std::int64_t rows = 6) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + number));
  return Batch{{"x", at::randn({rows, 8}, at::kDouble)}, {"y", at::randn({rows, 4}, at::kDouble)}};
}

static double backward(Sequential& model, const Batch& batch) {
  const Tensor loss = squared_error(model, batch);
  loss.backward();
  return loss.item<double>();
}

static bool close(const Tensor& a, const Tensor& b) { return at::allclose(a, b, 1e-10, 1e-14); }

static void check_same(Sequential& got, Sequential& wanted) {
  for (const auto& item : wanted->named_parameters()) {
    CAPTURE(item.key());
    const Tensor mine = got->named_parameters()[item.key()];
    CHECK(close(mine, item.value()));
    REQUIRE(mine.grad().defined() == item.value().grad().defined());
    if (mine.grad().defined()) CHECK(close(mine.grad(), item.value().grad()));
  }
  for (const auto& item : wanted->named_buffers()) {
    CAPTURE(item.key());
    CHECK(close(got->named_buffers()[item.key()], item.value()));
  }
}

TEST_CASE("gradients of several batches add up as those of autograd, and forward's buffers follow") {
  auto model = net(), plain = net();
  Trainer trainer(model, squared_error);
  for (int i = 0; i < 3; ++i) {
    const Batch batch = batch_of(i, 4 + i % 2);  // two shapes
    CHECK(trainer.backward(batch) == doctest::Approx(backward(plain, batch)).epsilon(1e-12));
  }
  check_same(model, plain);
}

TEST_CASE("any optimizer and any clipping can use the gradients") {
  auto model = net(), plain = net();
  Trainer trainer(model, squared_error);
  torch::optim::RMSprop ours(model->parameters(), 0.01), theirs(plain->parameters(), 0.01);
  for (int i = 0; i < 4; ++i) {
    ours.zero_grad();
    trainer.backward(batch_of(i));
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
    ours.step();
    theirs.zero_grad();
    backward(plain, batch_of(i));
    torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1);
    theirs.step();
  }
  check_same(model, plain);
}

TEST_CASE("an optimizer that evaluates the loss several times a step calls backward for each") {
  auto model = net(), plain = net();
  model->eval();  // batch norm's statistics would be another function at each evaluation
  plain->eval();
  Trainer trainer(model, squared_error);
  torch::optim::LBFGS ours(model->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4));
  torch::optim::LBFGS theirs(plain->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4));
  for (int i = 0; i < 3; ++i) {
    ours.step([&] {
      ours.zero_grad();
      return at::scalar_tensor(trainer.backward(batch_of(0)), at::kDouble);
    });
    theirs.step([&] {
      theirs.zero_grad();
      return at::scalar_tensor(backward(plain, batch_of(0)), at::kDouble);
    });
  }
  for (std::size_t i = 0; i < 6; ++i)
    CHECK(at::allclose(model->parameters()[i], plain->parameters()[i], 1e-7, 1e-9));
}

TEST_CASE("a gradient that is there is added to in place, and a new one has memory of its own") {
  auto model = net();
  Trainer trainer(model, squared_error);
  trainer.backward(batch_of(0));
  const Tensor held = model->parameters()[0].grad(), before = held.clone();
  trainer.backward(batch_of(1));
  CHECK(held.is_same(model->parameters()[0].grad()));
  CHECK_FALSE(at::equal(held, before));
  model->zero_grad(/*set_to_none=*/true);
  const Tensor kept = held.clone();
  trainer.backward(batch_of(2));
  CHECK_FALSE(held.is_same(model->parameters()[0].grad()));
  CHECK(at::equal(held, kept));
}

namespace {
// The sum of products, whose gradient is the other factor itself.
struct Dot : torch::autograd::Function<Dot> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& w, const Tensor& x) {
    context->save_for_backward({x});
    return (w * x).sum();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& /*ones*/) {
    return {context->get_saved_variables()[0], Tensor()};
  }
};
}  // namespace

TEST_CASE("a gradient that is a tensor of the batch is a copy of it") {
  torch::nn::Linear model(torch::nn::LinearOptions(4, 1).bias(false));
  Trainer trainer(model, [](torch::nn::Linear& m, const Batch& batch) {
    return Dot::apply(m->weight, batch[0].tensor());
  });
  const Tensor x = at::randn({1, 4}), before = x.clone();
  trainer.backward(Batch{x});
  CHECK(at::equal(model->weight.grad(), x));
  trainer.backward(Batch{x});
  CHECK(at::equal(model->weight.grad(), 2 * before));
  CHECK(at::equal(x, before));
}

TEST_CASE("parameters that get no gradient keep what they have") {
  auto model = net();
  model->parameters()[0].set_requires_grad(false);
  Trainer trainer(model, [](Sequential& m, const Batch& batch) {
    return m->ptr<torch::nn::LinearImpl>(0)->forward(batch["x"].tensor()).sum();
  });
  trainer.backward(batch_of(0));
  for (std::size_t i = 0; i < 6; ++i) CHECK(model->parameters()[i].grad().defined() == (i == 1));
}

TEST_CASE("each call draws its own dropout: not that of another call or of a step, the same for a seed") {
  const auto losses = [](std::uint64_t seed, bool steps) {
    auto model = net_with_dropout();
    Trainer trainer(model, squared_error, SGD{.lr = 0}, {.seed = seed});
    std::vector<double> all;
    for (int i = 0; i < 3; ++i) {
      if (steps) all.push_back(trainer.step(batch_of(0)).loss);
      all.push_back(trainer.backward(batch_of(0)));
    }
    return all;
  };
  const auto once = losses(1, true);
  for (std::size_t a = 0; a < once.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) CHECK(once[a] != once[b]);
  CHECK(losses(1, true) == once);
  CHECK(losses(2, true) != once);
  CHECK(losses(1, false) == std::vector<double>{once[1], once[3], once[5]});
}

TEST_CASE("draws go on where a saved state was") {
  auto model = net_with_dropout(), same = net_with_dropout();
  Trainer trainer(model, squared_error), resumed(same, squared_error);
  trainer.backward(batch_of(0));
  TrainingState read;
  train::set_counts(read, train::counts_of(trainer.state()));
  CHECK(read.backwards == 1);
  resumed.restore(trainer.state());
  CHECK(trainer.backward(batch_of(0)) == resumed.backward(batch_of(0)));
}

TEST_CASE("a step and backward share one capture, and take turns") {
  auto model = net(), plain = net();
  int captures = 0;
  Trainer trainer(model,
                  [&captures](Sequential& m, const Batch& batch) {
                    ++captures;
                    return squared_error(m, batch);
                  },
                  SGD{.lr = 0.1}, {.spot_check_share = -1});
  torch::optim::SGD sgd(plain->parameters(), 0.1);
  for (int i = 0; i < 3; ++i) {
    trainer.backward(batch_of(i));
    backward(plain, batch_of(i));
    const auto accumulated = model->parameters()[0].grad().clone();
    trainer.step(batch_of(i));
    CHECK(at::equal(model->parameters()[0].grad(), accumulated));
    std::vector<Tensor> gradients;
    for (auto& parameter : plain->parameters()) {
      gradients.push_back(parameter.grad());
      parameter.mutable_grad() = Tensor();
    }
    backward(plain, batch_of(i));
    sgd.step();
    for (std::size_t p = 0; p < gradients.size(); ++p) plain->parameters()[p].mutable_grad() = gradients[p];
  }
  check_same(model, plain);
  CHECK(captures == 2);  // a graph is captured twice
}

TEST_CASE("a loss that is not finite is returned, for whoever looks at it") {
  auto model = net(), plain = net();
  Trainer trainer(model, squared_error);
  Batch batch = batch_of(0);
  batch["y"].tensor()[0][0] = std::numeric_limits<double>::infinity();
  CHECK(std::isinf(trainer.backward(batch)));
  CHECK_FALSE(at::isfinite(model->parameters()[4].grad()).all().item<bool>());
}

TEST_CASE("without an optimizer a step and clipping are refused, with what to do") {
  auto model = net();
  Trainer trainer(model, squared_error);
  CHECK(error_of([&] { trainer.step(batch_of(0)); }).find("call backward(batch)") != std::string::npos);
  const Batch batch = batch_of(0);
  CHECK(error_of([&] { trainer.step_over({&batch, 1}); }).find("call backward(batch)") != std::string::npos);
  CHECK(std::isfinite(trainer.evaluate(batch_of(0))));
  CHECK(error_of([&] { Trainer(model, squared_error, {.clip_norm = 1}); }).find("clip_norm is 1") !=
        std::string::npos);
}

TEST_CASE("a step keeps its gradients in the parameters when asked to") {
  for (const bool over : {false, true}) {
    auto model = net(), plain = net();
    Trainer trainer(model, squared_error, SGD{.lr = 0.1}, {.clip_norm = 0.01, .keeps_gradients = true});
    Tensor held;
    for (int i = 0; i < 2; ++i) {
      const Batch batch = batch_of(i);
      plain->zero_grad();
      backward(plain, batch);
      if (over)
        trainer.step_over({&batch, 1});
      else
        trainer.step(batch);
      for (std::size_t p = 0; p < 6; ++p)
        CHECK(close(model->parameters()[p].grad(), plain->parameters()[p].grad()));
      if (i == 0) held = model->parameters()[0].grad();
      const at::NoGradGuard no_grad;
      for (std::size_t p = 0; p < 6; ++p) plain->parameters()[p].copy_(model->parameters()[p]);
      model->parameters()[0].grad().zero_();  // the caller's own
      CHECK(at::allclose(trainer.gradients().at("0.weight"), plain->parameters()[0].grad()));
    }
    CHECK_FALSE(held.is_same(model->parameters()[0].grad()));
  }
}

}  // namespace backward_test
