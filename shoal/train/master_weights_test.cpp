// SPDX-License-Identifier: Apache-2.0
// Models in bfloat16 without a float32 copy of their weights: rounded by chance, or with a compensation.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/compile/plan.h"
#include "shoal/compile/update.h"
#include "shoal/train/trainer.h"

namespace master_weights_test {

using namespace shoal;
using at::Tensor;
using rewrite::Master;
namespace functional = torch::nn::functional;

namespace {

torch::nn::Sequential net() {
  torch::manual_seed(3);
  torch::nn::Sequential layers(torch::nn::Linear(8, 68), torch::nn::Tanh(),
                               torch::nn::LayerNorm(std::vector<std::int64_t>{68}),
                               torch::nn::Linear(68, 200), torch::nn::Tanh(), torch::nn::Linear(200, 5));
  layers->to(at::kBFloat16);
  return layers;
}

Tensor loss_of(torch::nn::Sequential& model, const Batch& batch) {
  return functional::cross_entropy(model->forward(batch["x"].tensor()), batch["y"]);
}

Batch batch_of(std::int64_t step) {
  at::manual_seed(static_cast<std::uint64_t>(100 + step));
  const Tensor x = at::randn({12, 8}).to(at::kBFloat16);
  return Batch{{"x", x}, {"y", x.narrow(1, 0, 5).argmax(1)}};
}

Parallelism with(Master master) {
  Parallelism parallelism;
  parallelism.plan.precision = {.compute = DType::BFloat16, .master = master};
  return parallelism;
}

// One parameter whose gradient is what the batch says: updates alone are looked at.
struct WeightImpl : torch::nn::Module {
  explicit WeightImpl(const Tensor& start) : weight(register_parameter("weight", start.clone())) {}
  Tensor weight;
};
TORCH_MODULE(Weight);
Tensor given_gradient(Weight& model, const Batch& batch) {
  return (model->weight.to(at::kFloat) * batch["gradient"].tensor()).sum();
}

// One of each type beside each other, or one of them alone.
struct MixedImpl : torch::nn::Module {
  MixedImpl(bool has_narrow, bool has_wide) {
    at::manual_seed(5);
    const Tensor start = at::randn({40, 70});
    if (has_narrow) narrow = register_parameter("narrow", start.to(at::kBFloat16));
    if (has_wide) wide = register_parameter("wide", start.clone());
  }
  Tensor narrow, wide;
};
TORCH_MODULE(Mixed);
Tensor mixed_gradient(Mixed& model, const Batch& batch) {
  const Tensor gradient = batch["gradient"].tensor();
  Tensor loss = at::zeros({});
  for (const Tensor& each : model->parameters()) loss = loss + (each.to(at::kFloat) * gradient).sum();
  return loss;
}

std::vector<Optimizer> optimizers() {
  return {SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true},
          SGD{.lr = 0.1},
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
          ASGD{.lr = 0.1, .lambd = 0.1, .t0 = 2}};
}

using EachRank = std::function<void(Trainer&, torch::nn::Sequential&, int)>;
void on_ranks(int count, Parallelism parallelism, const Optimizer& optimizer, const EachRank& act) {
  std::vector<torch::nn::Sequential> models;
  for (int rank = 0; rank < count; ++rank) models.push_back(net());
  comm::run_as_threads(comm::inproc(count), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    auto& model = models[static_cast<std::size_t>(world.rank())];
    Parallelism own = parallelism;
    own.world = &world;
    Trainer trainer(model, loss_of, optimizer, {.clip_norm = 1, .seed = 7, .parallelism = own});
    act(trainer, model, world.rank());
  });
}

}  // namespace

TEST_CASE("an update of weights with a compensation is the float32 rule on their sum, and rounds twice") {
  for (const Optimizer& optimizer : optimizers()) {
    CAPTURE(optimizer.index());
    at::manual_seed(5);
    const Tensor start = at::randn({40, 70}).to(at::kBFloat16);
    Weight narrow(start), wide(start.to(at::kFloat));
    Trainer trainer(narrow, given_gradient, optimizer, {.parallelism = with(Master::Kahan)});
    Trainer exact(wide, given_gradient, optimizer);
    for (std::int64_t step = 0; step < 4; ++step) {
      const Batch batch{{"gradient", at::randn({40, 70})}};
      trainer.step(batch);
      exact.step(batch);
      const Tensor value = wide->weight.detach(), weight = value.to(at::kBFloat16);
      const Tensor left = (value - weight.to(at::kFloat)).to(at::kBFloat16);
      CHECK(at::equal(narrow->weight.detach(), weight));
      auto state = trainer.optimizer_state();
      CHECK(at::equal(state.at("weight.compensation"), left));
      for (const auto& [name, tensor] : exact.optimizer_state()) CHECK(at::equal(state.at(name), tensor));
      const at::NoGradGuard no_grad;
      wide->weight.copy_(weight.to(at::kFloat) + left.to(at::kFloat));  // what the next update starts from
    }
  }
}

TEST_CASE("rounding by chance gives a neighbour, and on average the value") {
  const double lr = 0x1p-12;  // a 32nd of the distance between neighbours
  const Tensor start = at::ones({64, 256}, at::kBFloat16);
  Weight narrow(start);
  Trainer trainer(narrow, given_gradient, SGD{.lr = lr}, {.parallelism = with(Master::None)});
  trainer.step(Batch{{"gradient", -at::ones({64, 256})}});
  const Tensor weight = narrow->weight.detach().to(at::kFloat);
  CHECK(weight.eq(1).logical_or(weight.eq(1 + 0x1p-7)).all().item<bool>());
  // Of 16384 elements a 32nd is 512; four standard deviations are 89.
  CHECK(std::abs(weight.ne(1).sum().item<double>() - 512) < 89);
  Weight other(start), seeded(start);
  Trainer same(other, given_gradient, SGD{.lr = lr}, {.parallelism = with(Master::None)});
  Trainer differs(seeded, given_gradient, SGD{.lr = lr}, {.seed = 1, .parallelism = with(Master::None)});
  same.step(Batch{{"gradient", -at::ones({64, 256})}});
  differs.step(Batch{{"gradient", -at::ones({64, 256})}});
  CHECK(at::equal(other->weight, narrow->weight));
  CHECK_FALSE(at::equal(seeded->weight, narrow->weight));
  // Another update draws other numbers: most of the elements that go up now had stayed.
  trainer.step(Batch{{"gradient", -at::ones({64, 256})}});
  const Tensor both = narrow->weight.detach().to(at::kFloat).gt(1 + 0x1p-7);
  CHECK(both.sum().item<double>() < 60);
}

TEST_CASE("updates that bfloat16 would round away move weights as float32 does") {
  const auto after = [](Master master, bool is_float32) {
    const Tensor start = at::ones({64, 64}, is_float32 ? at::kFloat : at::kBFloat16);
    Weight model(start);
    TrainerOptions options;
    if (master != Master::Float32) options.parallelism = with(master);
    Trainer trainer(model, given_gradient, AdamW{.lr = 1e-4, .weight_decay = 0}, std::move(options));
    for (std::int64_t step = 0; step < 400; ++step) trainer.step(Batch{{"gradient", at::ones({64, 64})}});
    return model->weight.detach().to(at::kFloat).mean().item<double>();
  };
  const double wanted = after(Master::Float32, true);
  CHECK(std::abs(wanted - 0.96) < 1e-3);
  CHECK(after(Master::Float32, false) == 1);                     // to the nearest: each update is lost
  CHECK(std::abs(after(Master::Kahan, false) - wanted) < 2e-3);  // half of the last bit
  CHECK(std::abs(after(Master::None, false) - wanted) < 2e-3);
}

TEST_CASE("weights of both types, with state in bfloat16, are updated as each alone") {
  const Optimizer optimizer = AdamW{.lr = 0.01, .state_dtype = DType::BFloat16};
  Mixed both(true, true), narrow(true, false), wide(false, true);
  Trainer of_both(both, mixed_gradient, optimizer, {.seed = 7, .parallelism = with(Master::None)});
  Trainer of_narrow(narrow, mixed_gradient, optimizer, {.seed = 7, .parallelism = with(Master::None)});
  Trainer of_wide(wide, mixed_gradient, optimizer, {.seed = 7});
  for (int step = 0; step < 4; ++step) {
    const Batch batch{{"gradient", at::randn({40, 70})}};
    for (Trainer* each : {&of_both, &of_narrow, &of_wide}) each->step(batch);
    CHECK(at::equal(both->narrow, narrow->narrow));
    CHECK(at::equal(both->wide, wide->wide));
    const auto state = of_both.optimizer_state();
    for (const auto& alone : {of_narrow.optimizer_state(), of_wide.optimizer_state()})
      for (const auto& [name, tensor] : alone) CHECK(at::equal(state.at(name), tensor));
  }
}

TEST_CASE("ranks have the weights of one device, and go on from its checkpoint to the bit") {
  std::vector<Batch> batches;  // drawn here: threads would share the generator
  for (std::int64_t step = 1; step <= 4; ++step) batches.push_back(batch_of(step));
  const Optimizer optimizer = AdamW{.lr = 0.01};
  for (const Master master : {Master::Kahan, Master::None}) {
    std::map<std::string, Tensor> wanted;
    const auto keep = [&](Trainer& trainer, torch::nn::Sequential& model) {
      trainer.materialize();
      for (const auto& item : model->named_parameters()) wanted[item.key()] = item.value().detach().clone();
      for (const auto& [name, tensor] : trainer.optimizer_state()) wanted[name] = tensor.clone();
    };
    TrainingState saved;
    on_ranks(1, with(master), optimizer, [&](Trainer& trainer, torch::nn::Sequential& model, int) {
      for (std::size_t step = 0; step < 3; ++step) trainer.step(batches[step]);
      saved = trainer.state();
      for (auto* tensors : {&saved.model, &saved.optimizer})
        for (auto& [name, tensor] : *tensors) tensor = tensor.clone();
      trainer.step(batches[3]);
      keep(trainer, model);
    });
    CHECK((wanted.at("0.weight").scalar_type() == at::kBFloat16));
    CHECK((wanted.at("0.weight.exp_avg").scalar_type() == at::kFloat));
    CHECK(wanted.contains("0.weight.compensation") == (master == Master::Kahan));
    // The whole batch on each rank, so that gradients are those of one device: what is left are updates.
    for (const auto& [mesh, stage] : {std::pair(mesh_of(3, 3, 1, 1), 0),
                                      {mesh_of(3, 1, 3, 1), 1},
                                      {mesh_of(3, 1, 3, 1), 2},
                                      {mesh_of(3, 1, 3, 1), 3}}) {
      CAPTURE(stage);
      Parallelism parallelism = with(master);
      parallelism.mesh = mesh;
      parallelism.plan.zero_stage = stage;
      parallelism.plan.whole_inputs = {"x", "y"};
      std::map<std::string, Tensor> ours;
      on_ranks(3, parallelism, optimizer, [&](Trainer& trainer, torch::nn::Sequential& model, int rank) {
        trainer.restore(saved);
        trainer.step(batches[3]);
        trainer.materialize();
        const auto state = trainer.optimizer_state();
        if (rank != 0) return;
        for (const auto& item : model->named_parameters()) ours[item.key()] = item.value().detach().clone();
        for (const auto& [name, tensor] : state) ours[name] = tensor.clone();
      });
      for (const auto& [name, tensor] : wanted) {
        CAPTURE(name);
        CHECK(at::equal(ours.at(name), tensor));
      }
    }
  }
}

TEST_CASE("gradients are float32 until the update, and have the weights' type where they are handed out") {
  auto model = net();
  Trainer trainer(model, loss_of, AdamW{}, {.keeps_gradients = true, .parallelism = with(Master::Kahan)});
  trainer.step(batch_of(1));
  for (const auto& result : trainer.graph(batch_of(1)).results)
    if (result.role == ir::Role::Gradient)
      CHECK(trainer.graph(batch_of(1)).at(result.value).type.dtype == DType::Float32);
  for (const Tensor& parameter : model->parameters())
    CHECK((parameter.grad().scalar_type() == at::kBFloat16));
}

TEST_CASE("gradients that were made elsewhere, in bfloat16, update as float32 ones do") {
  auto model = net(), other = net();
  Trainer trainer(model, loss_of, AdamW{.lr = 0.01}, {.parallelism = with(Master::Kahan)});
  Trainer given(other, loss_of, AdamW{.lr = 0.01}, {.parallelism = with(Master::Kahan)});
  std::map<std::string, Tensor> narrow, wide;
  for (const auto& item : model->named_parameters()) {
    narrow[item.key()] = at::ones_like(item.value()) / 8;
    wide[item.key()] = narrow[item.key()].to(at::kFloat);
  }
  trainer.step_with({.loss = 1, .gradients = narrow});
  given.step_with({.loss = 1, .gradients = wide});
  for (std::size_t i = 0; i < model->parameters().size(); ++i)
    CHECK(at::equal(model->parameters()[i], other->parameters()[i]));
  CHECK((trainer.gradients().at("0.bias").scalar_type() == at::kBFloat16));
}

TEST_CASE("micro-batches are one batch") {
  for (const Master master : {Master::Kahan, Master::None}) {
    auto model = net(), other = net();
    Trainer whole(model, loss_of, AdamW{.lr = 0.01}, {.parallelism = with(master)});
    Trainer parts(other, loss_of, AdamW{.lr = 0.01}, {.parallelism = with(master)});
    const Batch batch = batch_of(1);
    whole.step(batch);
    std::vector<Batch> cut;
    for (std::int64_t begin : {0, 6})
      cut.push_back(map_tensors(
          batch, [&](const std::string&, const Tensor& tensor) { return tensor.narrow(0, begin, 6); }));
    parts.step_over(cut);
    const auto ours = parts.optimizer_state(), theirs = whole.optimizer_state();
    for (const auto& [name, tensor] : theirs)
      if (name.ends_with("exp_avg"))  // products are rounded in each micro-batch
        CHECK((ours.at(name) - tensor).abs().max().item<double>() < 0.02 * tensor.abs().max().item<double>());
  }
}

TEST_CASE("what has no weights in bfloat16, or updates whole tensors, is refused by name") {
  torch::nn::Sequential wide(torch::nn::Linear(8, 5));
  const Batch batch{{"x", at::ones({2, 8})}, {"y", at::zeros({2}, at::kLong)}};
  Trainer float32(wide, loss_of, AdamW{}, {.parallelism = with(Master::Kahan)});
  CHECK(error_of([&] { float32.step(batch); }) ==
        "precision: master=kahan keeps weights in bfloat16, and no parameter of this model is. Remedy: "
        "model.to(torch.bfloat16), in C++ model->to(at::kBFloat16), before the trainer; or leave master out");
  for (const auto& [optimizer, name] :
       {std::pair<Optimizer, const char*>(LAMB{}, "LAMB"), {Adafactor{}, "Adafactor"}}) {
    auto model = net();
    Trainer trainer(model, loss_of, optimizer, {.parallelism = with(Master::None)});
    CHECK(error_of([&] { trainer.step(batch_of(1)); }) ==
          concat("optimizer: ", name,
                 " looks at whole tensors, which precision.master=none does not update; leave it at float32, "
                 "with a model that is, or take an optimizer that goes element by element, such as AdamW"));
  }
  for (const char* words : {"float32 master=kahan", "float16 master=none"})
    CHECK(error_of([&] {
            compile::precision_from_text(words);
          }).find("keeps weights in bfloat16, and products") != std::string::npos);
  CHECK(error_of([&] {
          compile::precision_from_text("bfloat16 master=half");
        }).find("master is 'half'; it is float32, none or kahan") != std::string::npos);
  const auto precision = compile::precision_from_text("bfloat16 master=kahan");
  CHECK(precision.master == Master::Kahan);
  compile::Plan plan;
  plan.precision = precision;
  CHECK(to_text(plan) == "precision bfloat16 master=kahan\n");
}

}  // namespace master_weights_test
