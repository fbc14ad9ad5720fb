// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/trainer.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include <cmath>
#include <limits>
#include <utility>

#include "shoal/base/error_test.h"
#include "shoal/capture/capture.h"

namespace trainer_test {

using namespace shoal;
using at::Tensor;

static torch::nn::Sequential net() {
  torch::manual_seed(3);
  torch::nn::Sequential layers(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 4));
  layers->to(at::kDouble);
  return layers;
}

static Tensor squared_error(torch::nn::Sequential& model, const Batch& batch) {
  return at::mse_loss(model->forward(batch["x"].tensor()), batch["y"]);
}

static Batch random_batch(std::int64_t rows) {
  return Batch{{"x", at::randn({rows, 8}, at::kDouble)}, {"y", at::randn({rows, 4}, at::kDouble)}};
}

TEST_CASE("training lowers the loss and changes the user's module") {
  auto model = net();
  const auto before = model->parameters()[0].detach().clone();
  Trainer trainer(model, squared_error, AdamW{.lr = 1e-2}, {.clip_norm = 1.0});
  const auto batch = random_batch(16);
  const auto first = trainer.step(batch);
  for (int i = 0; i < 30; ++i) trainer.step(batch);
  const auto last = trainer.step(batch);
  CHECK(last.loss < 0.5 * first.loss);
  CHECK(first.step == 1);
  CHECK(last.step == 32);
  CHECK(first.grad_norm > 0);
  CHECK_FALSE(at::equal(before, model->parameters()[0]));
  CHECK(model->parameters()[0].requires_grad());
}

TEST_CASE("a batch of another shape gets a graph of its own, and optimizer state is shared") {
  auto model = net();
  Trainer trainer(model, squared_error, Adam{}, {.graph_bytes = 0});
  trainer.step(random_batch(3));
  trainer.step(random_batch(5));
  CHECK(trainer.step(random_batch(3)).step == 3);
  CHECK(trainer.optimizer_state().size() == 8);
}

TEST_CASE("evaluation changes nothing and uses evaluation mode") {
  torch::nn::Sequential model(torch::nn::Linear(8, 4), torch::nn::Dropout(0.5));
  model->to(at::kDouble);
  Trainer trainer(model, squared_error, SGD{});
  const auto batch = random_batch(4);
  const double once = trainer.evaluate(batch);
  CHECK(once == trainer.evaluate(batch));
  CHECK(model->is_training());
  model->eval();
  const at::NoGradGuard no_grad;
  CHECK(once == squared_error(model, batch).item<double>());
}

TEST_CASE("a permutation of constants is another at every step, and the same again for the same seed") {
  const auto losses = [](std::uint64_t seed) {
    torch::manual_seed(0);
    torch::nn::Linear model(8, 4);
    model->to(at::kDouble);
    const auto loss = [](torch::nn::Linear& net, const Batch& batch) {
      return (net->forward(batch[0].tensor()) * at::arange(4, at::kDouble).index({at::randperm(4)})).sum();
    };
    Trainer trainer(model, loss, SGD{.lr = 0}, {.seed = seed});
    const Batch batch{at::ones({2, 8}, at::kDouble)};
    return std::vector{trainer.step(batch).loss, trainer.step(batch).loss, trainer.step(batch).loss};
  };
  const auto first = losses(1);
  CHECK(first[0] != first[1]);
  CHECK(first[1] != first[2]);
  CHECK(losses(1) == first);
  CHECK(losses(2) != first);
}

TEST_CASE("evaluations of a model that draws differ, and leave the draws of training alone") {
  const auto run = [](int evaluations) {
    torch::manual_seed(0);
    torch::nn::Linear model(8, 4);
    model->to(at::kDouble);
    const auto loss = [](torch::nn::Linear& net, const Batch& batch) {
      return at::dropout(net->forward(batch[0].tensor()), 0.5, /*train=*/true).square().sum();
    };
    Trainer trainer(model, loss, SGD{.lr = 0});
    const Batch batch{at::linspace(-1, 1, 32, at::kDouble).view({4, 8})};
    std::vector<double> evaluated;
    for (int i = 0; i < evaluations; ++i) evaluated.push_back(trainer.evaluate(batch));
    return std::pair(evaluated, trainer.step(batch).loss);
  };
  const auto [evaluated, trained] = run(3);
  CHECK(std::set<double>(evaluated.begin(), evaluated.end()).size() == 3);
  CHECK(run(3).first == evaluated);
  CHECK(run(0).second == trained);
}

TEST_CASE("a loss that is not a number names the module, and nothing is updated") {
  auto model = net();
  Trainer trainer(model, squared_error, AdamW{});
  trainer.step(random_batch(4));
  {
    const at::NoGradGuard no_grad;
    model->parameters()[2][1][1] = std::numeric_limits<double>::quiet_NaN();
  }
  const auto before = model->parameters()[0].detach().clone();
  const auto message = error_of([&] { trainer.step(random_batch(4)); });
  CHECK(contains(message, "the loss of step 2 is nan"));
  CHECK(contains(message, "module \"2\""));
  CHECK(at::equal(before, model->parameters()[0]));
}

TEST_CASE("a frozen parameter is left alone, also when it is frozen between steps") {
  auto model = net();
  Trainer trainer(model, squared_error, AdamW{.lr = 0.1});
  trainer.step(random_batch(4));
  model->parameters()[0].set_requires_grad(false);
  const auto before = model->parameters()[0].detach().clone();
  const auto bias = model->parameters()[1].detach().clone();
  trainer.step(random_batch(4));
  CHECK(at::equal(before, model->parameters()[0]));
  CHECK_FALSE(at::equal(bias, model->parameters()[1]));
  model->parameters()[0].set_requires_grad(true);
  trainer.step(random_batch(4));  // its own update count goes on from 1
  CHECK_FALSE(at::equal(before, model->parameters()[0]));
}

TEST_CASE("integers and floats of a batch are read by the model; each value has its graph") {
  auto model = net();
  const auto loss = [](torch::nn::Sequential& m, const Batch& batch) {
    auto y = m->forward(batch[0].tensor());
    for (std::int64_t i = 0; i < batch[1].integer(); ++i) y = y * batch[2].number();
    return y.pow(2).sum();
  };
  Trainer trainer(model, loss, SGD{.lr = 0});
  const auto x = at::randn({2, 8}, at::kDouble);
  const double once = trainer.step(Batch{x, 1, 2.0}).loss;
  CHECK(trainer.step(Batch{x, 2, 2.0}).loss == doctest::Approx(4 * once));
  CHECK(trainer.step(Batch{x, 1, 3.0}).loss == doctest::Approx(once * 9 / 4));
}

TEST_CASE("wrong use of a batch names what was asked for and what is there") {
  const Batch batch{{"x", at::zeros({2})}};
  CHECK(contains(error_of([&] { batch["y"]; }), "there is no item \"y\"; there are: x"));
  CHECK(contains(error_of([&] { batch[0]; }),
                 "an item by number was asked for, but this part of the batch is a map"));
  CHECK(contains(error_of([&] { Trainer(net(), squared_error, AdamW{.beta1 = 1.5}).step(random_batch(2)); }),
                 "beta1 is 1.5; it must be in [0, 1)"));
}

// The module as a model of another language: tensors by name, and functions.
static ModelView view_of(torch::nn::Sequential& model, ModelView::NamedTensors& outputs) {
  ModelView view{.parameters = {}, .buffers = {}, .loss = {}, .mode = [] { return std::string(); }};
  for (const auto& item : model->named_parameters()) view.parameters.emplace_back(item.key(), item.value());
  view.loss = [&](const Batch& batch) {
    const auto y = model->forward(batch["x"].tensor());
    outputs = {{"y", y}, {"weight", model->parameters()[0]}};
    return at::mse_loss(y, batch["y"]);
  };
  view.outputs = [&] { return std::exchange(outputs, {}); };
  return view;
}

TEST_CASE("parts of the parameters have optimizers of their own, and their learning rates can be changed") {
  auto model = net(), same = net();
  ModelView::NamedTensors outputs;
  const auto of = [](const std::string& layer) {
    return [layer](const std::string& name) { return name.starts_with(layer); };
  };
  Trainer parts(view_of(model, outputs), {{of("0."), SGD{.lr = 0.5}}, {of("2."), SGD{.lr = 0.1}}});
  Trainer groups(
      same, squared_error,
      SGD{.lr = 0.2,
          .groups = {{[](const auto& name, const auto&) { return name.starts_with("2."); }, 0.1, {}}}});
  parts.set_learning_rate(0, 0.2);
  const auto batch = random_batch(4);
  for (int i = 0; i < 3; ++i) CHECK(parts.step(batch).loss == groups.step(batch).loss);
  for (std::size_t i = 0; i < 4; ++i) CHECK(at::equal(model->parameters()[i], same->parameters()[i]));
  CHECK(parts.step(batch).learning_rate == 0.2);
  CHECK(contains(error_of([&] { parts.set_learning_rate(2, 1); }),
                 "there is no optimizer part 2, there are 2"));
}

TEST_CASE("optimizers with other settings go on without another capture") {
  auto model = net(), same = net();
  ModelView::NamedTensors outputs;
  int captures = 0;
  auto view = view_of(model, outputs);
  view.loss = [&captures, loss = view.loss](const Batch& batch) { return ++captures, loss(batch); };
  Trainer trainer(view, {{{}, AdamW{.lr = 0.1}}}, {.spot_check_share = -1});
  Trainer expected(same, squared_error, AdamW{.lr = 0.1});
  const auto batch = random_batch(4);
  CHECK(trainer.step(batch).loss == expected.step(batch).loss);
  trainer.set_optimizers({{{}, AdamW{.lr = 0.1, .beta1 = 0}}});
  trainer.step(batch);
  CHECK(captures == 2);  // a graph is captured twice
  expected.step(batch);
  CHECK_FALSE(at::equal(model->parameters()[0], same->parameters()[0]));
  CHECK(trainer.optimizer_state().at("0.weight.exp_avg").allclose(trainer.gradients().at("0.weight")));
}

TEST_CASE("a parameter in no part stays as it is") {
  auto model = net();
  ModelView::NamedTensors outputs;
  Trainer trainer(view_of(model, outputs),
                  {{[](const std::string& name) { return name != "0.weight"; }, AdamW{.lr = 0.1}}});
  const auto before = model->parameters()[0].detach().clone();
  trainer.step(random_batch(4));
  CHECK(at::equal(before, model->parameters()[0]));
}

TEST_CASE("outputs of a step are those of before the update, and a parameter among them is a copy") {
  auto model = net();
  ModelView::NamedTensors outputs;
  Trainer trainer(view_of(model, outputs), {{{}, SGD{.lr = 0.5}}});
  const auto batch = random_batch(4);
  const auto before = model->parameters()[0].detach().clone();
  const auto y = model->forward(batch["x"].tensor());
  trainer.step(batch);
  CHECK(at::allclose(trainer.outputs().at("y"), y));
  CHECK(at::equal(trainer.outputs().at("weight"), before));
}

TEST_CASE("a module that moves to other memory is trained there") {
  auto model = net();
  Trainer trainer(model, squared_error, SGD{.lr = 0.5});
  const auto batch = random_batch(4);
  trainer.step(batch);
  for (auto& parameter : model->parameters()) parameter.set_data(parameter.detach().clone());
  const auto before = model->parameters()[0].detach().clone();
  trainer.step(batch);
  CHECK_FALSE(at::equal(before, model->parameters()[0]));
}

TEST_CASE("a parameter that is cut where it lies is trained in its new shape") {
  const auto batch = random_batch(4);
  const auto loss = [](torch::nn::Sequential& model, const Batch& in) {
    return model->forward(in["x"].tensor()).pow(2).sum();
  };
  const auto cut = [](torch::nn::Sequential& model) {
    for (auto& parameter : model[2]->as<torch::nn::Linear>()->parameters())
      parameter.set_data(parameter.detach().narrow(0, 0, 2));
  };
  auto model = net(), same = net();
  Trainer trainer(model, loss, SGD{.lr = 0.01});
  trainer.step(batch);
  for (std::size_t i = 0; i < 4; ++i) same->parameters()[i].detach().copy_(model->parameters()[i]);
  cut(model);
  cut(same);
  const auto expected = loss(same, batch);
  expected.backward();
  CHECK(trainer.step(batch).loss == doctest::Approx(expected.item<double>()).epsilon(1e-12));
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(at::allclose(model->parameters()[i],
                       same->parameters()[i].detach() - 0.01 * same->parameters()[i].grad()));

  auto with_state = net();
  Trainer adam(with_state, loss, AdamW{});
  adam.step(batch);
  cut(with_state);
  CHECK(
      contains(error_of([&] { adam.step(batch); }),
               "2.weight has another shape than when it was updated last: its exp_avg has [4, 16] and it has "
               "[2, 16]"));
}

TEST_CASE("a complex parameter is refused before anything is written; sgn of complex numbers is right") {
  auto holder = std::make_shared<torch::nn::Module>();
  const Tensor real = holder->register_parameter("a", at::ones({3}, at::kDouble));
  const Tensor complex = holder->register_parameter("b", at::randn({3}, at::kComplexDouble));
  Trainer trainer(
      holder, [&](const Batch&) { return (real * at::sgn(complex) * complex).abs().sum(); },
      Optimizer(SGD{.lr = 0.1}));
  CHECK(contains(error_of([&] { trainer.step(Batch{{"x", at::ones({1})}}); }),
                 "parameter b is c128, and the optimizers update real numbers alone"));
  CHECK(at::equal(real, at::ones({3}, at::kDouble)));
  const double loss = (real * at::sgn(complex) * complex).abs().sum().item<double>();
  CHECK(trainer.evaluate(Batch{{"x", at::ones({1})}}) == doctest::Approx(loss));
  CHECK(trainer.backward(Batch{{"x", at::ones({1})}}) == doctest::Approx(loss));
}

TEST_CASE("a cosine schedule warms up linearly and ends at its minimum") {
  const LearningRateSchedule schedule{
      .decay = LearningRateSchedule::Decay::Cosine, .warmup_steps = 4, .total_steps = 12, .min_factor = 0.1};
  CHECK(factor(schedule, 1) == doctest::Approx(0.25));
  CHECK(factor(schedule, 4) == doctest::Approx(1));
  CHECK(factor(schedule, 8) == doctest::Approx(0.55));
  CHECK(factor(schedule, 12) == doctest::Approx(0.1));
  CHECK(factor(schedule, 99) == doctest::Approx(0.1));
}

TEST_CASE(
    "parameters that share memory and are not one tensor are refused, also when they begin to between "
    "steps") {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  const auto loss = [](auto& net, const Batch& batch) {
    return net->forward(batch[0].tensor()).square().mean();
  };
  const auto weight = [&](const char* name) { return model->named_parameters()[name]; };
  const auto own = weight("1.weight").detach().clone();
  weight("1.weight").set_data(weight("0.weight").detach());
  CHECK(contains(error_of([&] { const Trainer trainer(model, loss, SGD{.lr = 0.1}); }),
                 "parameters 0.weight and 1.weight share memory and are two tensors"));
  weight("1.weight").set_data(own);
  Trainer trainer(model, loss, SGD{.lr = 0.1});
  const Batch batch{at::randn({2, 4}), at::zeros({1})};
  trainer.step(batch);
  weight("1.bias").set_data(weight("0.weight").detach()[1]);
  for (int again = 0; again < 2; ++again)
    CHECK(contains(error_of([&] { trainer.step(batch); }), "parameters 0.weight and 1.bias share memory"));
  const auto whole = at::randn({20});
  weight("1.weight").set_data(whole.slice(0, 0, 16).view({4, 4}));
  weight("1.bias").set_data(whole.slice(0, 16));
  trainer.step(batch);
  weight("1.weight").requires_grad_(false).set_data(weight("0.weight").detach());
  trainer.backward(batch);
  CHECK(weight("0.weight").grad().defined());
}

TEST_CASE(
    "optimizer state that is given is shared, what is not given begins anew, and parts may become others") {
  auto model = net();
  Trainer trainer(model, squared_error, AdamW{.lr = 1e-2});
  const auto batch = random_batch(4);
  trainer.step(batch);
  const auto moment = at::full({16, 8}, 0.5, at::kDouble);
  const auto transposed = at::full({8, 16}, 0.25, at::kDouble).t();
  trainer.restore({{"0.weight.exp_avg", moment}, {"0.weight.exp_avg_sq", transposed}},
                  Progress{.steps = 1, .updates = {{"0.weight", 3}}});
  CHECK(trainer.optimizer_state().at("0.weight.exp_avg").is_alias_of(moment));
  CHECK(trainer.optimizer_state().at("0.weight.exp_avg_sq").is_contiguous());
  const auto before = trainer.optimizer_state().at("0.weight.exp_avg_sq").clone();
  trainer.step(batch);
  CHECK(trainer.updates() ==
        std::map<std::string, std::int64_t>{{"0.bias", 1}, {"0.weight", 4}, {"2.bias", 1}, {"2.weight", 1}});
  CHECK_FALSE(at::allclose(moment, at::full({}, 0.5, at::kDouble)));
  CHECK(before.equal(transposed));
  trainer.set_optimizers(
      {{[](const std::string& name) { return name == "0.weight"; }, SGD{.lr = 0}}, {{}, SGD{.lr = 0.1}}});
  const auto frozen = model->parameters()[0].detach().clone();
  trainer.step(batch);
  CHECK(model->parameters()[0].equal(frozen));
}

}  // namespace trainer_test
