// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/spot_checks.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/train/trainer.h"

namespace spot_checks_test {

using namespace shoal;
using namespace std::chrono_literals;
using at::Tensor;

TEST_CASE("a check is due at the 2nd, 4th and 8th step, and then when it costs at most its share") {
  train::SpotChecks::Time now{1h};
  train::SpotChecks checks(0.005, [&] { return now; });
  std::vector<int> due;
  for (int step = 1; step <= 12; ++step)
    if (checks.is_due(step, false)) due.push_back(step);
  CHECK(due == std::vector{2, 4, 8});
  checks.run([&] { now += 10ms; });
  now += 1999ms;
  CHECK_FALSE(checks.is_time());
  now += 1ms;
  CHECK(checks.is_time());
  CHECK(checks.is_due(9, true));
  CHECK_THROWS(checks.run([&] { throw 1; }));  // is due again at once
  CHECK(checks.is_time());

  const train::SpotChecks early(0), none(-1);
  CHECK(early.is_due(8, false));
  CHECK_FALSE(early.is_time());
  CHECK_FALSE(none.is_due(2, true));
}

namespace {

struct Scaled : torch::nn::Module {
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(4, 2));
  double beta = 1;
  int calls = 0;

  Tensor forward(const Tensor& x) {
    ++calls;
    return fc(x) * beta;
  }
};

}  // namespace

static std::shared_ptr<Scaled> scaled() {
  torch::manual_seed(1);
  auto model = std::make_shared<Scaled>();
  model->to(at::kDouble);
  return model;
}

static Tensor loss_of(std::shared_ptr<Scaled>& model, const Batch& batch) {
  return model->forward(batch["x"].tensor()).square().mean();
}

static Batch batch_of(std::int64_t rows) {
  return Batch{{"x", at::arange(4 * rows, at::kDouble).reshape({rows, 4})}};
}

TEST_CASE(
    "a member that has changed is an error that names operator, module and line, before anything changes") {
  auto model = scaled();
  Trainer trainer(model, loss_of, SGD{.lr = 1e-3});
  trainer.step(batch_of(3));
  const auto before = model->fc->weight.detach().clone();
  model->beta = 0.5;
  for (int again = 0; again < 2; ++again) {  // it stays refused
    const auto message = error_of([&] { trainer.step(batch_of(3)); });
    CHECK(contains(message,
                   "calls aten::mul.Scalar with other arguments than when its step was captured "
                   "(other=1.0 then, other=0.5 now)"));
    CHECK(contains(message, "module fc"));
    CHECK(contains(message, "spot_checks_test.cpp:"));
    CHECK(contains(message, "depends_on"));
    CHECK(contains(message, "forget_graphs()"));
  }
  CHECK(at::equal(model->fc->weight, before));
  CHECK(trainer.progress().steps == 1);
  trainer.forget_graphs();
  CHECK(trainer.step(batch_of(3)).step == 2);
  CHECK(error_of([&] { trainer.step_over(std::vector{batch_of(3), batch_of(3)}); }).empty());
}

TEST_CASE("a graph is checked at its 2nd, 4th and 8th step, by one run of the model; then by the clock") {
  const auto runs_at = [](double share, int steps) {
    auto model = scaled();
    Trainer trainer(model, loss_of, SGD{.lr = 1e-3}, {.spot_check_share = share});
    std::vector<int> checked;
    for (int step = 1; step <= steps; ++step) {
      const int before = model->calls;
      trainer.step(batch_of(3));
      if (step == 1) CHECK(model->calls == before + 2);  // captured
      if (step > 1 && model->calls == before + 1) checked.push_back(step);
    }
    return checked;
  };
  CHECK(runs_at(0, 20) == std::vector{2, 4, 8});
  CHECK(runs_at(1e9, 12) == std::vector{2, 4, 8, 9, 10, 11, 12});
  CHECK(runs_at(-1, 20).empty());
}

TEST_CASE("graphs that differ in sizes alone are one to the checks, and the model runs once for each") {
  auto model = scaled();
  Trainer trainer(model, loss_of, SGD{.lr = 1e-3}, {.spot_check_share = 0});
  const auto runs_of = [&](std::int64_t rows) {
    const int before = model->calls;
    trainer.step(batch_of(rows));
    return model->calls - before;
  };
  CHECK(runs_of(3) == 2);
  CHECK(runs_of(4) == 1);  // captured, and alike: neither the 2nd step nor compared with a run of its own
  CHECK(runs_of(5) == 1);
  CHECK(runs_of(4) == 1);  // the 2nd that was not captured for
  CHECK(runs_of(5) == 0);
  CHECK(runs_of(3) == 1);  // the 4th
  model->beta = 2;
  CHECK(runs_of(6) == 2);  // another number: as if there were no other graph
  CHECK(runs_of(6) == 1);
  for (int step = 5; step < 8; ++step) CHECK(runs_of(6) == (step == 6 ? 1 : 0));
  CHECK(contains(error_of([&] {
                   for (int i = 0; i < 4; ++i) trainer.step(batch_of(4));
                 }),
                 "other=2.0 now"));
}

TEST_CASE("a step over micro-batches counts once, and evaluations are checked too") {
  auto model = scaled();
  Trainer trainer(model, loss_of, SGD{.lr = 1e-3}, {.spot_check_share = 0});
  const std::vector parts{batch_of(3), batch_of(3), batch_of(3)};
  trainer.step_over(parts);
  CHECK(model->calls == 2);
  trainer.step_over(parts);
  CHECK(model->calls == 3);
  const auto before = model->fc->weight.detach().clone();
  trainer.step_over(parts);
  trainer.evaluate(batch_of(3));
  CHECK(model->calls == 5);
  model->beta = 2;
  CHECK(contains(error_of([&] { trainer.step_over(parts); }), "other=2.0 now"));
  CHECK(contains(error_of([&] { trainer.evaluate(batch_of(3)); }), "other=2.0 now"));
}

TEST_CASE("what depends_on says is followed: each value has graphs of its own") {
  auto model = scaled(), same = scaled();
  Trainer trainer(model, loss_of, SGD{.lr = 1e-3},
                  {.depends_on = [model] { return std::to_string(model->beta); }});
  torch::optim::SGD sgd(same->parameters(), 1e-3);
  for (const double beta : {1.0, 0.5, 1.0, 0.5, 2.0}) {
    model->beta = same->beta = beta;
    sgd.zero_grad();
    const auto loss = loss_of(same, batch_of(3));
    loss.backward();
    sgd.step();
    CHECK(trainer.step(batch_of(3)).loss == doctest::Approx(loss.item<double>()).epsilon(1e-12));
    CHECK(at::allclose(model->fc->weight, same->fc->weight));
  }
}

TEST_CASE("a model that does the same is never refused: random draws, other strides, tensors beside it") {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(4, 6), torch::nn::Dropout(0.5), torch::nn::BatchNorm1d(6));
  model->to(at::kDouble);
  const auto weights = at::ones({6}, at::kDouble);
  Trainer trainer(
      model,
      [weights](auto& net, const Batch& batch) {
        const auto y = net->forward(batch["x"].tensor()) * weights;
        return (y * at::tensor({1., 2., 3., 4., 5., 6.}, at::kDouble) + at::randn_like(y)).square().mean();
      },
      SGD{.lr = 0}, {.spot_check_share = 1e9});
  for (int step = 0; step < 10; ++step) {
    at::rand({step + 1});  // the generator has moved on
    const Tensor x = step % 2 == 0 ? at::ones({8, 4}, at::kDouble) : at::ones({4, 8}, at::kDouble).t();
    if (step == 5) weights.mul_(2);  // the step reads it where it is
    trainer.step(Batch{{"x", x}});
  }
  CHECK(trainer.progress().steps == 10);
}

}  // namespace spot_checks_test
