// SPDX-License-Identifier: Apache-2.0
// What a step reads and writes besides parameters: its batch, and tensors that stand beside the model.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include "shoal/base/error_test.h"
#include "shoal/capture/capture.h"
#include "shoal/train/trainer.h"

namespace inputs_test {

using namespace shoal;
using at::Tensor;

static torch::nn::Linear net() {
  torch::manual_seed(3);
  torch::nn::Linear layer(4, 2);
  layer->to(at::kDouble);
  return layer;
}

static ModelView view_of(torch::nn::Linear& model, ModelView view) {
  for (const auto& item : model->named_parameters()) view.parameters.emplace_back(item.key(), item.value());
  view.mode = [] { return std::string(); };
  return view;
}

TEST_CASE("what the model writes into its batch arrives there, at every step") {
  auto model = net();
  Trainer trainer(
      model,
      [](auto& layer, const Batch& batch) {
        const Tensor loss = layer->forward(batch["x"].tensor()).square().mean();
        batch["seen"].tensor().add_(batch["x"].tensor().detach().sum(1));
        return loss;
      },
      SGD{.lr = 0.1});
  const Tensor x = at::randn({3, 4}, at::kDouble), seen = at::zeros({3}, at::kDouble);
  for (int step = 1; step <= 3; ++step) {
    trainer.step(Batch{{"x", x}, {"seen", seen}});
    CHECK(at::allclose(seen, step * x.sum(1)));
  }
  trainer.evaluate(Batch{{"x", x}, {"seen", seen}});
  CHECK(at::allclose(seen, 4 * x.sum(1)));
}

TEST_CASE("what is written into one item of the batch and lies in another too is refused, at any step") {
  auto model = net();
  Trainer trainer(
      model,
      [](auto& layer, const Batch& batch) {
        batch["seen"].tensor().add_(1);
        return layer->forward(batch["x"].tensor()).square().mean();
      },
      SGD{.lr = 0.1});
  const Tensor x = at::randn({3, 4}, at::kDouble), both = at::zeros({5, 4}, at::kDouble);
  trainer.step(Batch{{"x", x}, {"seen", at::zeros({4}, at::kDouble)}});
  const auto with = [&](const Tensor& rows, const Tensor& seen) {
    return error_of([&] { trainer.step(Batch{{"x", rows}, {"seen", seen}}); });
  };
  CHECK(with(x, x[1]).find("writes to item seen of the batch, which shares memory with item x") !=
        std::string::npos);
  // Beside each other in one memory they do not meet.
  CHECK(with(both.slice(0, 0, 3), both[4]) == error_of([] {}));
}

TEST_CASE("a tensor beside the model is read anew at each step, written, and given its gradient") {
  auto model = net();
  Tensor scale = at::ones({2}, at::kDouble), sum = at::zeros({2}, at::kDouble);
  scale.set_requires_grad(true);
  ModelView view;
  view.loss = [&](const Batch& batch) {
    const Tensor y = model->forward(batch["x"].tensor());
    sum.add_(y.detach().sum(0));
    return (y * scale).sum();
  };
  view.outputs = [] { return ModelView::NamedTensors(); };
  Trainer trainer(view_of(model, std::move(view)), {{{}, SGD{.lr = 0.0}}});
  const Tensor x = at::randn({3, 4}, at::kDouble);
  const Batch batch{{"x", x}, {"~scale", scale}, {"~sum", sum}};
  const Tensor y = model->forward(x).detach();
  CHECK(trainer.step(batch).loss == doctest::Approx(y.sum().item<double>()));
  CHECK(at::allclose(trainer.outputs().at(capture::gradient_name("~scale")), y.sum(0)));
  {
    const at::NoGradGuard no_grad;
    scale.mul_(2);
  }
  CHECK(trainer.step(batch).loss == doctest::Approx(2 * y.sum().item<double>()));
  CHECK(at::allclose(sum, 2 * y.sum(0)));
  CHECK_FALSE(scale.grad().defined());
}

TEST_CASE("other parameters may be set; those that stay keep their optimizer state") {
  auto model = net();
  ModelView view;
  view.loss = [&](const Batch& batch) { return model->forward(batch[0].tensor()).square().mean(); };
  Trainer trainer(view_of(model, std::move(view)), {{{}, SGD{.lr = 0.1, .momentum = 0.9}}});
  const Batch batch{at::randn({3, 4}, at::kDouble)};
  trainer.step(batch);
  const Tensor kept = trainer.optimizer_state().at("bias.momentum_buffer").clone();
  const Tensor weight = at::zeros({2, 4}, at::kDouble).set_requires_grad(true);
  model->weight = weight;
  trainer.set_tensors({{"weight", weight}, {"bias", model->bias}}, {});
  CHECK(trainer.optimizer_state().count("weight.momentum_buffer") == 0);
  CHECK(at::equal(trainer.optimizer_state().at("bias.momentum_buffer"), kept));
  trainer.step(batch);
  CHECK(weight.detach().abs().max().item<double>() > 0);
}

}  // namespace inputs_test
