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
#include "shoal/compile/plan.h"
#include "shoal/compile/update.h"
#include "shoal/runtime/state_blocks.h"
#include "shoal/train/trainer.h"

namespace state_dtype_test {

using namespace shoal;
using at::Tensor;
namespace functional = torch::nn::functional;

namespace {

// More elements than an update has on the stack at once, cut by ranks at other places than blocks end.
torch::nn::Sequential net(at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(3);
  torch::nn::Sequential layers(torch::nn::Linear(8, 68), torch::nn::Tanh(), torch::nn::Linear(68, 200),
                               torch::nn::Tanh(), torch::nn::Linear(200, 5));
  layers->to(dtype);
  return layers;
}

Tensor loss_of(torch::nn::Sequential& model, const Batch& batch) {
  return functional::cross_entropy(model->forward(batch["x"].tensor()), batch["y"]);
}

Batch batch_of(std::int64_t step, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(static_cast<std::uint64_t>(100 + step));
  const Tensor x = at::randn({12, 8}, dtype);
  return Batch{{"x", x}, {"y", x.narrow(1, 0, 5).argmax(1)}};
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

// What is exact stays so; sums over samples differ in their last bits between numbers of ranks.
void check_same(const Tensor& ours, const Tensor& theirs) {
  if (ours.scalar_type() == at::kDouble)
    CHECK(at::allclose(ours, theirs, 1e-9, 1e-12));
  else
    CHECK(at::equal(ours, theirs));
}

using EachRank = std::function<void(Trainer&, torch::nn::Sequential&, int)>;
void on_ranks(int count, int zero_stage, const Optimizer& optimizer, const EachRank& act) {
  std::vector<torch::nn::Sequential> models;
  for (int rank = 0; rank < count; ++rank) models.push_back(net(at::kDouble));
  comm::run_as_threads(comm::inproc(count), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    auto& model = models[static_cast<std::size_t>(world.rank())];
    Parallelism parallelism{
        .mesh = zero_stage == 0 ? mesh_of(count, count, 1, 1) : mesh_of(count, 1, count, 1), .world = &world};
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

// A state as numbers of the parameter's type: what the next update starts from.
static std::map<std::string, Tensor> as_numbers(const std::map<std::string, Tensor>& state,
                                                at::ScalarType dtype) {
  std::map<std::string, Tensor> all;
  for (const auto& [name, tensor] : state) {
    if (name.ends_with("_absmax")) continue;
    const auto maxima = state.find(name + "_absmax");
    if (maxima == state.end()) {
      all.emplace(
          name, tensor.dim() == 0 ? tensor.clone() : tensor.to(dtype, /*non_blocking=*/false, /*copy=*/true));
      continue;
    }
    const std::string suffix = name.substr(name.rfind('.') + 1);
    const Tensor shares =
        at::from_blob(const_cast<float*>(runtime::shares(compile::is_signed(suffix))), {256});
    const Tensor largest =
        maxima->second.flatten().repeat_interleave(256).narrow(0, 0, tensor.numel()).view(tensor.sizes());
    all.emplace(name, shares.index_select(0, tensor.flatten().to(at::kInt)).view(tensor.sizes()).to(dtype) *
                          largest.to(dtype));
  }
  return all;
}

// One of the two neighbours; how many of the elements are not the nearest.
static std::int64_t check_rounds(const Tensor& kept, const Tensor& exact) {
  CHECK((kept.scalar_type() == at::kBFloat16));
  const Tensor value = exact.to(at::kDouble), off = (kept.to(at::kDouble) - value).abs();
  const Tensor last_bit = at::exp2(value.abs().clamp_min(1e-37).log2().floor() - 7);
  CHECK(off.lt(last_bit * (1 + 1e-6)).all().item<bool>());
  CHECK(off.masked_select(exact.to(at::kBFloat16).to(at::kDouble) == value).eq(0).all().item<bool>());
  return at::ne(kept, exact.to(at::kBFloat16)).sum().item<std::int64_t>();
}

// Of codes: the share that is nearest, of all 256.
static void check_codes(const Tensor& codes, const Tensor& maxima, const Tensor& exact, bool is_signed) {
  CHECK((codes.scalar_type() == at::kByte));
  const Tensor shares = at::from_blob(const_cast<float*>(runtime::shares(is_signed)), {256}).to(at::kDouble);
  const Tensor flat = exact.flatten().to(at::kDouble), kept = codes.flatten(), largest = maxima.flatten();
  CHECK(largest.numel() == (flat.numel() + 255) / 256);
  for (std::int64_t block = 0; block < largest.numel(); ++block) {
    const std::int64_t size = std::min<std::int64_t>(256, flat.numel() - 256 * block);
    const Tensor values = flat.narrow(0, 256 * block, size);
    const double most = values.abs().max().item<double>();
    CHECK(largest[block].item<float>() == static_cast<float>(most));
    const Tensor share = values / (most > 0 ? static_cast<double>(static_cast<float>(most)) : 1.0);
    const Tensor code = kept.narrow(0, 256 * block, size).to(at::kLong);
    const Tensor off = (shares.index_select(0, code) - share).abs();
    const Tensor least = std::get<0>((shares.view({1, 256}) - share.view({-1, 1})).abs().min(1));
    const Tensor first =
        is_signed ? at::zeros_like(code).to(at::kBool) : code.eq(1);  // no zero of what is above
    CHECK(off.le(least + 1e-7).logical_or(first).all().item<bool>());
  }
}

TEST_CASE("an update computes with the parameter's type, and what it keeps is rounded after each") {
  for (const DType state : {DType::BFloat16, DType::UInt8})
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
      for (const Optimizer& optimizer : optimizers(state)) {
        CAPTURE(optimizer.index());
        Optimizer plain = optimizer;
        compile::set_state_dtype(plain, DType::Float32);
        auto model = net(dtype), reference = net(dtype);
        Trainer trainer(model, loss_of, optimizer), wide(reference, loss_of, plain);
        std::int64_t differ = 0, by_chance = 0;
        for (std::int64_t step = 1; step <= 4; ++step) {
          trainer.step(batch_of(step, dtype));
          wide.step(batch_of(step, dtype));
          const auto kept = trainer.optimizer_state(), whole = wide.optimizer_state();
          for (const auto& [name, exact] : whole) {
            const Tensor& tensor = kept.at(name);
            if (exact.dim() == 0)
              CHECK(at::equal(tensor, exact));
            else if (state == DType::BFloat16)
              by_chance += check_rounds(tensor, exact);
            else if (exact.numel() >= 4096)
              check_codes(tensor, kept.at(name + "_absmax"), exact,
                          compile::is_signed(name.substr(name.rfind('.') + 1)));
            else
              CHECK(at::equal(tensor, exact));
          }
          for (std::size_t i = 0; i < model->parameters().size(); ++i)
            CHECK(at::equal(model->parameters()[i], reference->parameters()[i]));
          const auto next = as_numbers(kept, dtype);
          for (const auto& [name, exact] : whole)
            differ += at::ne(next.at(name), exact).sum().item<std::int64_t>();
          wide.restore(next, trainer.progress());
        }
        if (std::holds_alternative<Rprop>(optimizer)) continue;  // powers of two, and signs
        CHECK(differ > 1000);
        CHECK((by_chance > 1000) == (state == DType::BFloat16));
      }
}

TEST_CASE("an average in bfloat16 follows however slow its decay is") {
  // Without a gradient what remains of it after 500 updates is 0.999^500. To the nearest nothing would go.
  const Optimizer optimizer = AdamW{.lr = 0.0, .beta2 = 0.999, .state_dtype = DType::BFloat16};
  auto model = net();
  const auto nothing = [](torch::nn::Sequential& layers, const Batch& batch) {
    return loss_of(layers, batch) * batch["size"].tensor();
  };
  Trainer trainer(model, nothing, optimizer);
  const Batch one = batch_of(1);
  const auto sum_after = [&](float size, int updates) {
    const Batch batch{{"x", one["x"].tensor()}, {"y", one["y"].tensor()}, {"size", at::scalar_tensor(size)}};
    for (int i = 0; i < updates; ++i) trainer.step(batch);
    return trainer.optimizer_state().at("2.weight.exp_avg_sq").sum(at::kDouble).item<double>();
  };
  const double before = sum_after(1, 1), after = sum_after(0, 500);
  CHECK(after / before == doctest::Approx(std::pow(0.999, 500)).epsilon(0.01));
}

TEST_CASE("ranks keep the state that one device has, to the bit, and go on from it in any number") {
  std::vector<Batch> batches;  // drawn here: threads would share the generator
  for (std::int64_t step = 1; step <= 4; ++step) batches.push_back(batch_of(step, at::kDouble));
  for (const DType state : {DType::BFloat16, DType::UInt8}) {
    const Optimizer optimizer = AdamW{.lr = 0.01, .state_dtype = state};
    auto model = net(at::kDouble);
    Trainer alone(model, loss_of, optimizer);
    for (std::size_t step = 0; step < 3; ++step) alone.step(batches[step]);
    std::map<std::string, Tensor> wanted;
    for (const auto& [name, tensor] : alone.optimizer_state()) wanted.emplace(name, tensor.clone());
    alone.step(batches[3]);
    const auto next = alone.optimizer_state();
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(stage);
      TrainingState saved;
      on_ranks(3, stage, optimizer, [&](Trainer& trainer, torch::nn::Sequential&, int rank) {
        for (std::size_t step = 0; step < 3; ++step) trainer.step(part_of(batches[step], rank, 3));
        const auto now = trainer.state();
        if (rank == 0) saved = now;
      });
      for (const auto& [name, tensor] : wanted) {
        CAPTURE(name);
        check_same(saved.optimizer.at(name), tensor);
      }
      for (const int count : {1, 2})
        on_ranks(count, stage, optimizer, [&](Trainer& trainer, torch::nn::Sequential&, int rank) {
          trainer.restore(saved);
          trainer.step(part_of(batches[3], rank, count));
          const auto now = trainer.state();
          if (rank == 0)
            for (const auto& [name, tensor] : next) {
              CAPTURE(name);
              check_same(now.optimizer.at(name), tensor);
            }
        });
    }
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
  CHECK(error.find("0.bias.exp_avg: is f32[68], wanted bf16[68]") != std::string::npos);
  CHECK(error.find("Remedy: the optimizer's state_dtype as it was there") != std::string::npos);
  auto third = net();
  Trainer coded(third, loss_of, AdamW{.state_dtype = DType::UInt8});
  coded.step(batch_of(1));
  CHECK(error_of([&] { coded.restore(wide.optimizer_state(), wide.progress()); }) ==
        "trainer: optimizer state 2.weight.exp_avg is f32, wanted u8. Remedy: the optimizer's state_dtype as "
        "it "
        "was there, or no state");
  CHECK(error_of([&] {
          wide.restore(coded.state());
        }).find("2.weight.exp_avg: is u8[200, 68], wanted f32[200, 68]") != std::string::npos);
}

TEST_CASE("state in 8 bits takes a byte an element and a float for each 256") {
  auto model = net();
  Trainer trainer(model, loss_of, AdamW{.state_dtype = DType::UInt8});
  trainer.step(batch_of(1));
  std::size_t bytes = 0, elements = 0;
  for (const auto& [name, tensor] : trainer.optimizer_state())
    if (name.starts_with("2.weight.")) bytes += tensor.nbytes();
  elements = 200 * 68;
  CHECK(bytes == 2 * (elements + 4 * ((elements + 255) / 256)));
  const auto state = trainer.optimizer_state();
  CHECK((state.at("4.weight.exp_avg").scalar_type() == at::kFloat));  // fewer than 4096 elements
}

TEST_CASE("a layout that cuts a block is refused by name") {
  auto model = net(at::kDouble);
  std::vector<torch::nn::Sequential> models = {net(at::kDouble), net(at::kDouble)};
  comm::run_as_threads(comm::inproc(2), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    Parallelism parallelism{.mesh = mesh_of(2, 1, 1, 2), .world = &world};
    parallelism.plan =
        compile::plan_from_text("parameter 2.weight tensor=S(0)\nparameter 2.bias tensor=S(0)\n");
    const std::string error = error_of([&] {
      Trainer trainer(models[static_cast<std::size_t>(world.rank())], loss_of,
                      AdamW{.state_dtype = DType::UInt8}, {.parallelism = parallelism});
    });
    CHECK(error.find("parameter 2.weight is [R, R, S(0)], which cuts blocks of 256 elements") !=
          std::string::npos);
    CHECK(error.find("Remedy: parts of whole blocks") != std::string::npos);
  });
}

TEST_CASE("a short run with less state ends where one with all of it does, within 1 %") {
  const auto last_of = [](std::optional<DType> state) {
    auto model = net();
    Trainer trainer(model, loss_of, AdamW{.lr = 0.01, .beta2 = 0.95, .state_dtype = state});
    double loss = 0;
    for (std::int64_t step = 0; step < 40; ++step) loss = trainer.step(batch_of(step % 8)).loss;
    return loss;
  };
  const double wanted = last_of({});
  CHECK(wanted < 1.2);
  for (const DType state : {DType::BFloat16, DType::UInt8})
    CHECK(std::abs(last_of(state) - wanted) < 0.01 * wanted);
}

}  // namespace state_dtype_test
