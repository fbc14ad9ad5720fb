// SPDX-License-Identifier: Apache-2.0
// One device, eager LibTorch, is the oracle: every model and optimizer, five updates, must give the same
// losses, gradients, parameters, buffers and optimizer state.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/sanitized.h"
#include "shoal/capture/capture.h"
#include "shoal/train/trainer.h"
#include "tests/oracle/cases.h"

namespace oracle_test {

using namespace shoal;
using namespace shoal::cases;
using at::Tensor;
using Tensors = std::map<std::string, Tensor>;

static constexpr int kUpdates = 5;
static constexpr std::uint64_t kSeed = 11;

namespace {

// A pair of the same optimizer, Shoal's and LibTorch's.
struct OptimizerCase {
  const char* name;
  Optimizer ours;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const torch::nn::Module&)> theirs;
  double clip_norm = 0;
};

}  // namespace

// Matrices with decay, everything else without.
template <class Options, class TorchOptimizer>
static std::unique_ptr<torch::optim::Optimizer> with_groups(const torch::nn::Module& module,
                                                            const Options& options) {
  std::vector<Tensor> decayed, others;
  for (const auto& parameter : module.parameters())
    (parameter.dim() < 2 ? others : decayed).push_back(parameter);
  auto without = std::make_unique<Options>(options);
  without->weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, std::make_unique<Options>(options));
  groups.emplace_back(others, std::move(without));
  return std::make_unique<TorchOptimizer>(groups, options);
}

static std::vector<OptimizerCase> optimizers() {
  namespace optim = torch::optim;
  const auto sgd = [](optim::SGDOptions options) {
    return [options](const torch::nn::Module& module) {
      return std::make_unique<optim::SGD>(module.parameters(), options);
    };
  };
  return {
      {"SGD", SGD{.lr = 0.1, .weight_decay = 0.01}, sgd(optim::SGDOptions(0.1).weight_decay(0.01))},
      {"SGD, momentum", SGD{.lr = 0.05, .momentum = 0.9}, sgd(optim::SGDOptions(0.05).momentum(0.9))},
      {"SGD, Nesterov", SGD{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
       sgd(optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true))},
      {"Adam", Adam{.lr = 0.01, .weight_decay = 0.02},
       [](const torch::nn::Module& module) {
         return std::make_unique<optim::Adam>(module.parameters(),
                                              optim::AdamOptions(0.01).weight_decay(0.02));
       }},
      {"AdamW, clipped, decay for matrices alone",
       AdamW{
           .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1, .groups = no_decay_below_two_dims()},
       [](const torch::nn::Module& module) {
         return with_groups<optim::AdamWOptions, optim::AdamW>(
             module, optim::AdamWOptions(0.01).betas({0.8, 0.95}).weight_decay(0.1));
       },
       0.5},
  };
}

static Tensors parameters_of(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach();
  return tensors;
}

static Tensors buffers_of(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value();
  return tensors;
}

static Tensors gradients_of(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters())
    if (item.value().grad().defined()) tensors[item.key()] = item.value().grad();
  return tensors;
}

static Tensors state_of(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters()) {
    const auto found = optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    auto* state = found->second.get();
    if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(state)) {
      if (sgd->momentum_buffer().defined()) tensors[item.key() + ".momentum_buffer"] = sgd->momentum_buffer();
    } else if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(state)) {
      tensors[item.key() + ".exp_avg"] = adam->exp_avg();
      tensors[item.key() + ".exp_avg_sq"] = adam->exp_avg_sq();
    } else if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(state)) {
      tensors[item.key() + ".exp_avg"] = adamw->exp_avg();
      tensors[item.key() + ".exp_avg_sq"] = adamw->exp_avg_sq();
    }
  }
  return tensors;
}

static double largest(const Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).abs().max().item<double>();
}

// |a − b| ≤ rtol · max|b| + rtol · (largest value of any tensor of the kind). What needs the second term is
// told.
static void check_close(const char* kind, const Tensors& ours, const Tensors& theirs) {
  static constexpr double kRtol = 1e-9;
  CAPTURE(std::string(kind));
  REQUIRE(ours.size() == theirs.size());
  double of_kind = 0;
  for (const auto& [name, tensor] : theirs) of_kind = std::max(of_kind, largest(tensor));
  for (const auto& [name, tensor] : theirs) {
    CAPTURE(name);
    REQUIRE(ours.contains(name));
    const double error = largest(ours.at(name) - tensor);
    CHECK(error <= kRtol * largest(tensor) + kRtol * of_kind);
    if (error > kRtol * largest(tensor))
      MESSAGE(std::string(kind), " ", name, " is within the tolerance of its kind alone: error ", error,
              ", largest ", largest(tensor));
  }
}

static Batch batch_of(const ModelCase& model, at::ScalarType type, int step) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(step));
  return model.batch(type);
}

// Trains both and compares after each update.
static void compare(const ModelCase& model, const OptimizerCase& optimizer, double dropout) {
  CAPTURE(std::string(model.name));
  CAPTURE(std::string(optimizer.name));
  const Net ours = model.make(dropout), theirs = model.make(dropout);
  ours.module->to(at::kDouble);
  theirs.module->to(at::kDouble);
  Trainer trainer(ours.module, ours.loss, optimizer.ours, {.clip_norm = optimizer.clip_norm, .seed = kSeed});
  const auto eager = optimizer.theirs(*theirs.module);
  for (int step = 1; step <= kUpdates; ++step) {
    CAPTURE(step);
    const Batch batch = batch_of(model, at::kDouble, step);
    eager->zero_grad();
    Tensor loss;
    {
      const capture::EagerRandom random(kSeed, step);
      loss = theirs.loss(batch);
    }
    loss.backward();
    Tensors gradients;
    for (const auto& [name, tensor] : gradients_of(*theirs.module)) gradients[name] = tensor.clone();
    double norm = 0;
    if (optimizer.clip_norm > 0)
      norm = torch::nn::utils::clip_grad_norm_(theirs.module->parameters(), optimizer.clip_norm);
    eager->step();

    const auto result = trainer.step(batch);
    CHECK(result.loss == doctest::Approx(loss.item<double>()).epsilon(1e-12));
    CHECK(result.grad_norm == doctest::Approx(norm).epsilon(1e-9));
    check_close("gradient", trainer.gradients(), gradients);
    check_close("parameter", parameters_of(*ours.module), parameters_of(*theirs.module));
    check_close("buffer", buffers_of(*ours.module), buffers_of(*theirs.module));
    check_close("state", trainer.optimizer_state(), state_of(*eager, *theirs.module));
  }
}

TEST_CASE("five updates in float64 equal eager LibTorch: every model, every optimizer") {
  const auto all = optimizers();
  for (std::size_t i = 0; i < std::size(kModels); ++i)
    for (std::size_t j = 0; j < all.size(); ++j)
      if (!kIsSanitized || j == i % all.size()) compare(kModels[i], all[j], 0);
}

TEST_CASE("with dropout they equal an eager run that is given the same masks") {
  for (const auto& model : kModels) compare(model, optimizers().back(), 0.2);
}

TEST_CASE("float32 gradients are bitwise those of eager") {
  for (const auto& model : kModels) {
    CAPTURE(std::string(model.name));
    const Net ours = model.make(0), theirs = model.make(0);
    Trainer trainer(ours.module, ours.loss, SGD{.lr = 0});
    const Batch batch = batch_of(model, at::kFloat, 1);
    const auto loss = theirs.loss(batch);
    loss.backward();
    CHECK(static_cast<float>(trainer.step(batch).loss) == loss.item<float>());
    const auto gradients = trainer.gradients();
    const auto wanted = gradients_of(*theirs.module);
    REQUIRE(gradients.size() == wanted.size());
    for (const auto& [name, tensor] : wanted) {
      CAPTURE(name);
      CHECK(at::equal(gradients.at(name), tensor));
    }
    for (const auto& [name, tensor] : buffers_of(*theirs.module))
      CHECK(at::equal(buffers_of(*ours.module).at(name), tensor));
  }
}

// oneDNN's LSTM, which float32 takes, gives the gradient of both biases as one tensor: nothing may write over
// it.
TEST_CASE("two clipped updates of an lstm in float32 are those of eager") {
  const Net ours = lstm(0), theirs = lstm(0);
  Trainer trainer(ours.module, ours.loss, SGD{.lr = 0.5}, {.clip_norm = 0.01});
  torch::optim::SGD eager(theirs.module->parameters(), torch::optim::SGDOptions(0.5));
  for (int step = 1; step <= 2; ++step) {
    const Batch batch = labelled_tokens();
    eager.zero_grad();
    theirs.loss(batch).backward();
    torch::nn::utils::clip_grad_norm_(theirs.module->parameters(), 0.01);
    eager.step();
    trainer.step(batch);
  }
  const auto wanted = parameters_of(*theirs.module);
  for (const auto& [name, tensor] : parameters_of(*ours.module)) {
    CAPTURE(name);
    CHECK(at::allclose(tensor, wanted.at(name), 1e-6, 1e-7));
  }
}

}  // namespace oracle_test
