// SPDX-License-Identifier: Apache-2.0
// Optimizer state in other types than the parameters': what an update makes of it, on one rank and several.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/compile/update.h"
#include "shoal/train/trainer.h"

using namespace shoal;
using at::Tensor;
namespace functional = torch::nn::functional;

namespace {

// More elements than an update has on the stack at once, and a number of them that no block divides.
torch::nn::Sequential net(at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(3);
  torch::nn::Sequential layers(torch::nn::Linear(8, 67), torch::nn::Tanh(), torch::nn::Linear(67, 129),
                               torch::nn::Tanh(), torch::nn::Linear(129, 5));
  layers->to(dtype);
  return layers;
}

Tensor loss_of(torch::nn::Sequential& model, const Batch& batch) {
  return functional::cross_entropy(model->forward(batch["x"].tensor()), batch["y"]);
}

Batch batch_of(std::int64_t step, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(static_cast<std::uint64_t>(100 + step));
  return Batch{{"x", at::randn({12, 8}, dtype)}, {"y", at::randint(5, {12}, at::kLong)}};
}

// Every optimizer that goes element by element.
std::vector<Optimizer> optimizers(DType state) {
  std::vector<Optimizer> all = {
      SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true},
      Adam{.lr = 0.01, .amsgrad = true},
      AdamW{.lr = 0.01},
      Adagrad{.lr = 0.05},
      RMSprop{.lr = 0.01, .momentum = 0.9, .centered = true},
      Adadelta{},
      Adamax{.lr = 0.01},
      RAdam{.lr = 0.01},
      Rprop{.lr = 0.01},
      Lion{.lr = 0.01, .weight_decay = 0.1},
      NAdam{.lr = 0.01},
      ASGD{.lr = 0.1, .lambd = 0.1, .t0 = 2},
  };
  for (Optimizer& optimizer : all) compile::set_state_dtype(optimizer, state);
  return all;
}

std::map<std::string, Tensor> as_float(const std::map<std::string, Tensor>& state, at::ScalarType dtype) {
  std::map<std::string, Tensor> all;
  for (const auto& [name, tensor] : state)
    all.emplace(name, tensor.dim() == 0 ? tensor.clone() : tensor.to(dtype));
  return all;
}

using EachRank = std::function<void(Trainer&, torch::nn::Sequential&, int)>;
void on_ranks(int count, int zero_stage, const Optimizer& optimizer, const EachRank& act) {
  std::vector<torch::nn::Sequential> models;
  for (int rank = 0; rank < count; ++rank) models.push_back(net(at::kDouble));
  comm::run_as_threads(comm::inproc(count), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    auto& model = models[static_cast<std::size_t>(world.rank())];
    Parallelism parallelism{.mesh = mesh_of(count, 1, count, 1), .world = &world};
    parallelism.plan.zero_stage = count == 1 ? 0 : zero_stage;
    Trainer trainer(model, loss_of, optimizer, {.parallelism = parallelism});
    act(trainer, model, world.rank());
  });
}

Batch part_of(const Batch& batch, int rank, int count) {
  const std::int64_t each = batch["y"].tensor().size(0) / count;
  return map_tensors(
      batch, [&](const std::string&, const Tensor& tensor) { return tensor.narrow(0, each * rank, each); });
}

}  // namespace

TEST_CASE("an update with bfloat16 state is that with the parameter's, rounded to the nearest after each") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const Optimizer& optimizer : optimizers(DType::BFloat16)) {
      CAPTURE(optimizer.index());
      Optimizer plain = optimizer;
      compile::set_state_dtype(plain, DType::Float32);
      auto model = net(dtype), reference = net(dtype);
      Trainer trainer(model, loss_of, optimizer), wide(reference, loss_of, plain);
      std::int64_t differ = 0;
      for (std::int64_t step = 1; step <= 5; ++step) {
        trainer.step(batch_of(step, dtype));
        wide.step(batch_of(step, dtype));
        const auto kept = trainer.optimizer_state(), whole = wide.optimizer_state();
        CHECK(kept.size() == whole.size());
        for (const auto& [name, tensor] : kept) {
          if (tensor.dim() == 0) continue;
          CHECK((tensor.scalar_type() == at::kBFloat16));
          CHECK(at::equal(tensor, whole.at(name).to(at::kBFloat16)));
          differ += at::ne(tensor.to(dtype), whole.at(name)).sum().item<std::int64_t>();
        }
        for (std::size_t i = 0; i < model->parameters().size(); ++i)
          CHECK(at::equal(model->parameters()[i], reference->parameters()[i]));
        wide.restore(as_float(kept, dtype), trainer.progress());
      }
      if (!std::holds_alternative<Rprop>(optimizer)) CHECK(differ > 1000);
    }
}

TEST_CASE("ranks keep the bfloat16 state that one device has, and go on from it in any number") {
  const Optimizer optimizer = AdamW{.lr = 0.01, .state_dtype = DType::BFloat16};
  auto model = net(at::kDouble);
  Trainer alone(model, loss_of, optimizer);
  for (std::int64_t step = 1; step <= 3; ++step) alone.step(batch_of(step, at::kDouble));
  const auto wanted = alone.optimizer_state();
  for (const int stage : {1, 2, 3}) {
    TrainingState saved;
    on_ranks(2, stage, optimizer, [&](Trainer& trainer, torch::nn::Sequential&, int rank) {
      for (std::int64_t step = 1; step <= 3; ++step)
        trainer.step(part_of(batch_of(step, at::kDouble), rank, 2));
      const auto state = trainer.state();
      if (rank == 0) saved = state;
    });
    for (const auto& [name, tensor] : wanted) CHECK(at::equal(tensor, saved.optimizer.at(name)));
    for (const int count : {1, 3})
      on_ranks(count, stage, optimizer, [&](Trainer& trainer, torch::nn::Sequential&, int rank) {
        trainer.restore(saved);
        trainer.step(part_of(batch_of(4, at::kDouble), rank, count));
        const auto state = trainer.state();
        if (rank == 0 && count == 1)
          CHECK((state.optimizer.at("2.weight.exp_avg").scalar_type() == at::kBFloat16));
      });
  }
}

TEST_CASE("state in another type is refused where tensors are updated whole, and where it is unknown") {
  Optimizer lamb = LAMB{}, muon = Muon{}, adafactor = Adafactor{};
  for (const auto& [optimizer, name] :
       {std::pair(&lamb, "LAMB"), std::pair(&muon, "Muon"), std::pair(&adafactor, "Adafactor")}) {
    compile::set_state_dtype(*optimizer, DType::Float32);
    CHECK(
        error_of([&each = *optimizer] { compile::set_state_dtype(each, DType::BFloat16); }) ==
        concat(
            "optimizer: ", name,
            " looks at whole tensors, and its state has the parameter's type; leave state_dtype at float32, "
            "or take an optimizer that goes element by element, such as AdamW"));
  }
  auto model = net();
  Trainer trainer(model, loss_of, Adam{.state_dtype = DType::Int64});
  CHECK(error_of([&] { trainer.step(batch_of(1)); }).find("state_dtype is i64; it must be") !=
        std::string::npos);
}

TEST_CASE("a state of another type is refused by name, with both types and the remedy") {
  auto model = net(), other = net();
  Trainer narrow(model, loss_of, AdamW{.state_dtype = DType::BFloat16}), wide(other, loss_of, AdamW{});
  narrow.step(batch_of(1));
  wide.step(batch_of(1));
  const std::string error = error_of([&] { narrow.restore(wide.state()); });
  CHECK(error.find("0.bias.exp_avg: is f32[67], wanted bf16[67]") != std::string::npos);
  CHECK(error.find("Remedy: the optimizer's state_dtype as it was there") != std::string::npos);
}

TEST_CASE("a short run with bfloat16 state ends where float32 state does, within 1 %") {
  const auto last_of = [](std::optional<DType> state) {
    auto model = net();
    Trainer trainer(model, loss_of, AdamW{.lr = 0.01, .beta2 = 0.95, .state_dtype = state});
    double loss = 0;
    for (std::int64_t step = 0; step < 40; ++step) loss = trainer.step(batch_of(step % 8)).loss;
    return loss;
  };
  const double wanted = last_of({});
  CHECK(wanted < 1.2);
  CHECK(std::abs(last_of(DType::BFloat16) - wanted) < 0.01 * wanted);
}
