// SPDX-License-Identifier: Apache-2.0
// Training on a CUDA device equals eager LibTorch on the same device: losses, gradients, parameters, buffers.
// Where LibTorch has no CUDA the device is a stand-in, and where there is no GPU every test says that it is
// skipped: device.h.
// Above 400 lines: one case for each kind of step; they share the models and the device.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/comm/call.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"
#include "shoal/train/training_state.h"
#include "tests/device/cuda.h"
#include "tests/oracle/cases.h"

using namespace shoal;
using namespace shoal::cases;
using Tensors = std::map<std::string, at::Tensor>;

static constexpr std::uint64_t kSeed = 11;
static constexpr int kUpdates = 3;

static bool is_there() {
  const std::string name = device::name();
  const std::string text = name.empty() ? "skipped: LibTorch has CUDA, and there is no GPU" : "on " + name;
  MESSAGE(text);
  return !name.empty();
}

static Batch moved(const Batch& batch) {
  return map_tensors(batch,
                     [](const std::string&, const at::Tensor& tensor) { return tensor.to(at::kCUDA); });
}

static Batch batch_of(const ModelCase& model, int step) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(step));
  return moved(model.batch(at::kDouble));
}

static Net made(const ModelCase& model, double dropout, at::Device device = at::kCUDA) {
  Net net = model.make(dropout);
  net.module->to(at::kDouble);
  net.module->to(device);
  return net;
}

static const ModelCase& model_named(std::string_view name) {
  return *std::ranges::find(kModels, name, &ModelCase::name);
}

static Tensors tensors_of(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value();
  return tensors;
}

// Within 1e-9 of the largest value of any tensor of the kind.
static void check_close(std::string kind, const Tensors& ours, const Tensors& theirs) {
  CAPTURE(kind);
  REQUIRE(ours.size() == theirs.size());
  double largest = 0, error = 0;
  std::string where;
  for (const auto& [name, tensor] : theirs) {
    CAPTURE(name);
    REQUIRE(ours.contains(name));
    if (tensor.numel() == 0) continue;
    const at::Tensor wanted = tensor.cpu().to(at::kDouble), got = ours.at(name).cpu().to(at::kDouble);
    largest = std::max(largest, wanted.abs().max().item<double>());
    const double difference = (wanted - got).abs().max().item<double>();
    if (!(difference <= error)) {
      error = difference;
      where = name;
    }
  }
  CAPTURE(where);
  CHECK(error <= 1e-9 * largest);
}

namespace {

struct OptimizerCase {
  const char* name;
  Optimizer ours;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const torch::nn::Module&)> theirs;
  double clip_norm = 0;
};

}  // namespace

static std::vector<OptimizerCase> optimizers() {
  namespace optim = torch::optim;
  return {{"SGD", SGD{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
           [](const torch::nn::Module& module) {
             return std::make_unique<optim::SGD>(
                 module.parameters(),
                 optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
           }},
          {"AdamW, clipped", AdamW{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1},
           [](const torch::nn::Module& module) {
             return std::make_unique<optim::AdamW>(
                 module.parameters(), optim::AdamWOptions(0.01).betas({0.8, 0.95}).weight_decay(0.1));
           },
           0.5}};
}

static void compare(const ModelCase& model, const OptimizerCase& optimizer, double dropout) {
  CAPTURE(std::string(model.name));
  CAPTURE(std::string(optimizer.name));
  const Net ours = made(model, dropout), theirs = made(model, dropout);
  Trainer trainer(ours.module, ours.loss, optimizer.ours, {.clip_norm = optimizer.clip_norm, .seed = kSeed});
  const auto eager = optimizer.theirs(*theirs.module);
  for (int step = 1; step <= kUpdates; ++step) {
    CAPTURE(step);
    const Batch batch = batch_of(model, step);
    eager->zero_grad();
    at::Tensor loss;
    {
      const capture::EagerRandom random(kSeed, step);
      loss = theirs.loss(batch);
    }
    loss.backward();
    Tensors gradients;
    for (const auto& item : theirs.module->named_parameters())
      if (item.value().grad().defined()) gradients[item.key()] = item.value().grad().clone();
    if (optimizer.clip_norm > 0)
      torch::nn::utils::clip_grad_norm_(theirs.module->parameters(), optimizer.clip_norm);
    eager->step();
    CHECK(trainer.step(batch).loss == doctest::Approx(loss.item<double>()).epsilon(1e-9));
    check_close("gradients", trainer.gradients(), gradients);
    check_close("tensors", tensors_of(*ours.module), tensors_of(*theirs.module));
  }
  const Batch unseen = batch_of(model, 9);
  theirs.module->eval();
  CHECK(trainer.evaluate(unseen) == doctest::Approx(theirs.loss(unseen).item<double>()).epsilon(1e-9));
}

TEST_CASE("three updates on the device equal eager LibTorch there: every model") {
  if (!is_there()) return;
  for (const auto& model : kModels)
    for (const auto& optimizer : optimizers()) compare(model, optimizer, 0);
}

TEST_CASE("with dropout they equal an eager run on the device that is given the same masks") {
  if (!is_there()) return;
  for (const char* name : {"bert", "gpt2", "lstm", "mlp"})
    compare(model_named(name), optimizers().back(), 0.2);
}

TEST_CASE("every optimizer updates on the device as in main memory") {
  if (!is_there()) return;
  const std::vector<std::pair<const char*, Optimizer>> all = {
      {"Adam", Adam{.lr = 0.01, .weight_decay = 0.1}},
      {"LAMB", LAMB{.lr = 0.01, .weight_decay = 0.1}},
      {"Adagrad", Adagrad{.lr = 0.01, .weight_decay = 0.1}},
      {"RMSprop", RMSprop{.lr = 0.01, .weight_decay = 0.1, .momentum = 0.9, .centered = true}},
      {"RMSprop, plain", RMSprop{.lr = 0.01}},
      {"Lion", Lion{.lr = 0.01, .weight_decay = 0.1}},
      {"SGD, maximised", SGD{.lr = 0.01, .momentum = 0.9, .maximize = true}},
      {"AMSGrad", Adam{.lr = 0.01, .beta2 = 0.5, .amsgrad = true, .maximize = true}},
      {"Adagrad, maximised", Adagrad{.lr = 0.01, .weight_decay = 0.1, .maximize = true}},
      {"Adadelta", Adadelta{.lr = 0.5, .weight_decay = 0.1}},
      {"Adamax", Adamax{.lr = 0.01, .weight_decay = 0.1}},
      {"RAdam", RAdam{.lr = 0.01, .weight_decay = 0.1}},
      {"RAdam, decoupled", RAdam{.lr = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = true}},
      {"Rprop", Rprop{.lr = 0.001}},
      {"Rprop, maximised", Rprop{.lr = 0.001, .grow = 1.5, .largest_step = 0.002, .maximize = true}},
      {"AdamW", AdamW{.lr = 0.01}}};
  std::set<std::size_t> kinds;
  for (const auto& [name, optimizer] : all) kinds.insert(optimizer.index());
  CHECK(kinds.size() == std::variant_size_v<Optimizer> - 4);  // four say that they update in main memory
  const ModelCase& model = model_named("mlp");
  for (const auto& [name, optimizer] : all) {
    CAPTURE(std::string(name));
    const Net there = made(model, 0), here = made(model, 0, at::kCPU);
    Trainer on_device(there.module, there.loss, optimizer, {.clip_norm = 0.5});
    Trainer in_main_memory(here.module, here.loss, optimizer, {.clip_norm = 0.5});
    for (int step = 1; step <= 7; ++step) {  // RAdam rectifies from its sixth on
      CAPTURE(step);
      const Batch batch = batch_of(model, step);
      on_device.step(batch);
      in_main_memory.step(
          map_tensors(batch, [](const std::string&, const at::Tensor& tensor) { return tensor.cpu(); }));
      check_close("tensors", tensors_of(*there.module), tensors_of(*here.module));
      check_close("state", on_device.optimizer_state(), in_main_memory.optimizer_state());
    }
  }
}

TEST_CASE("micro-batches on the device give what the whole batch gives") {
  if (!is_there()) return;
  const ModelCase& model = model_named("mlp");
  const Net whole = made(model, 0), parts = made(model, 0);
  Trainer at_once(whole.module, whole.loss, AdamW{.lr = 0.01}),
      in_parts(parts.module, parts.loss, AdamW{.lr = 0.01});
  for (int step = 1; step <= kUpdates; ++step) {
    const Batch batch = batch_of(model, step);
    std::vector<Batch> microbatches;
    for (int part = 0; part < 3; ++part)
      microbatches.push_back(map_tensors(batch, [part](const std::string&, const at::Tensor& tensor) {
        return tensor.narrow(0, 2 * part, 2);
      }));
    at_once.step(batch);
    in_parts.step_over(microbatches);
    check_close("tensors", tensors_of(*parts.module), tensors_of(*whole.module));
  }
}

TEST_CASE("training on the device goes on from its own state, and from one of main memory") {
  if (!is_there()) return;
  const ModelCase& model = model_named("gpt2");
  const Net first = made(model, 0.2);
  Trainer trainer(first.module, first.loss, AdamW{.lr = 0.01}, {.seed = kSeed});
  trainer.step(batch_of(model, 1));
  TrainingState saved = trainer.state();
  for (auto* tensors : {&saved.model, &saved.optimizer})
    for (auto& [name, tensor] : *tensors) tensor = tensor.cpu().clone();
  trainer.step(batch_of(model, 2));

  const Net second = made(model, 0.2);
  Trainer resumed(second.module, second.loss, AdamW{.lr = 0.01}, {.seed = kSeed});
  resumed.restore(saved);
  resumed.step(batch_of(model, 2));
  check_close("tensors", tensors_of(*second.module), tensors_of(*first.module));
}

TEST_CASE("a step waits for the device once, to look at the loss and the gradient norm") {
  if (!is_there()) return;
  for (const auto& model : kModels) {
    CAPTURE(std::string(model.name));
    const Net net = made(model, 0.2);
    Trainer trainer(net.module, net.loss, AdamW{.lr = 0.01}, {.clip_norm = 0.5, .spot_check_share = -1});
    const Batch batch = batch_of(model, 1);
    trainer.step(batch);
    CHECK(device::waits_in([&] { trainer.step(batch); }) == 1);
  }
}

TEST_CASE("a batch in main memory does not meet a model on the device") {
  if (!is_there()) return;
  const ModelCase& model = model_named("mlp");
  const Net net = made(model, 0);
  Trainer trainer(net.module, net.loss, SGD{.lr = 0.1});
  CHECK_THROWS_WITH_AS(trainer.step(model.batch(at::kDouble)), doctest::Contains("same device"), Error);
}

// Weights whose elements lie in another order than their gradients', and in gaps; two types of them.
struct Crooked : torch::nn::Module {
  Crooked() {
    turned = register_parameter("turned", at::randn({6, 12}, at::kDouble).t());
    sparse = register_parameter("sparse", at::randn({6, 5, 3}, at::kDouble).select(2, 1));
    half = register_parameter("half", at::randn({5}, at::kFloat));
  }
  at::Tensor forward(const at::Tensor& inputs) { return inputs.mm(turned).tanh().mm(sparse) + half; }
  at::Tensor turned, sparse, half;
};

TEST_CASE("weights of two types that lie in any order are updated on the device as in main memory") {
  if (!is_there()) return;
  const std::vector<Optimizer> all = {SGD{.lr = 0.1, .momentum = 0.9}, AdamW{.lr = 0.01}, LAMB{.lr = 0.01},
                                      Adagrad{.lr = 0.01}};
  for (const auto& optimizer : all) {
    CAPTURE(optimizer.index());
    torch::manual_seed(3);
    const auto here = std::make_shared<Crooked>();
    torch::manual_seed(3);
    const auto there = std::make_shared<Crooked>();
    there->to(at::kCUDA);
    REQUIRE(there->turned.stride(0) == here->turned.stride(0));
    // Moved, it would lie without gaps.
    const at::Tensor gaps = at::empty({6, 5, 3}, there->sparse.options()).select(2, 1);
    there->sparse.set_data(gaps.copy_(there->sparse.detach()));
    REQUIRE(!there->sparse.is_non_overlapping_and_dense());
    const auto loss_of = [](const std::shared_ptr<Crooked>& module) {
      return [module](const Batch& batch) {
        return at::cross_entropy_loss(module->forward(batch[0]), batch[1].tensor());
      };
    };
    Trainer on_device(there, loss_of(there), optimizer), in_main_memory(here, loss_of(here), optimizer);
    const Batch batch = model_named("mlp").batch(at::kDouble);
    for (int step = 1; step <= kUpdates; ++step) {
      in_main_memory.step(batch);
      on_device.step(moved(batch));
    }
    for (const auto& [name, tensor] : tensors_of(*here)) {
      CAPTURE(name);
      CHECK(at::allclose(tensors_of(*there).at(name).cpu(), tensor, 1e-6, 1e-7));
    }
  }
}

TEST_CASE("a GRU on the device trains as eager LibTorch does there") {
  if (!is_there()) return;
  const auto make = [] {
    torch::manual_seed(5);
    torch::nn::GRU gru(torch::nn::GRUOptions(12, 7).num_layers(2));
    gru->to(at::kDouble);
    gru->to(at::kCUDA);
    return Net{gru.ptr(), [gru](const Batch& batch) mutable {
                 return std::get<0>(gru->forward(batch[0])).square().mean();
               }};
  };
  const ModelCase gru{"gru", [&](double) { return make(); },
                      [](at::ScalarType type) { return Batch{at::randn({4, 3, 12}, type)}; }};
  for (const auto& optimizer : optimizers()) compare(gru, optimizer, 0);
}

namespace {
struct Attending : torch::nn::Module {
  Attending() { parts = register_module("parts", torch::nn::Linear(16, 48)); }
  at::Tensor forward(const at::Tensor& inputs, const std::optional<at::Tensor>& mask, bool is_causal) {
    const auto qkv = parts(inputs).view({inputs.size(0), inputs.size(1), 3, 2, 8}).permute({2, 0, 3, 1, 4});
    const auto seen = at::scaled_dot_product_attention(qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2),
                                                       mask, 0, is_causal);
    return seen.transpose(1, 2).reshape({inputs.size(0), inputs.size(1), 16});
  }
  torch::nn::Linear parts{nullptr};
};
}  // namespace

// Of 9 positions: neither a GPU's masks nor its statistics have rows of such a length.
TEST_CASE("attention on the device is a fused kernel's, and what eager LibTorch gives") {
  if (!is_there()) return;
  struct Case {
    at::ScalarType type;
    const char* mask;
    double bound;
  };
  for (const auto& [type, kind, bound] :
       {Case{at::kFloat, "none", 1e-5}, Case{at::kFloat, "causal", 1e-5}, Case{at::kFloat, "truth", 1e-5},
        Case{at::kFloat, "numbers", 1e-5}, Case{at::kFloat, "a row", 1e-5}, Case{at::kBFloat16, "none", 0.03},
        Case{at::kBFloat16, "causal", 0.03}, Case{at::kBFloat16, "truth", 0.03}}) {
    CAPTURE(std::string(toString(type)));
    CAPTURE(std::string(kind));
    torch::manual_seed(5);
    const auto options = at::TensorOptions(at::kCUDA).dtype(type);
    const auto theirs = std::make_shared<Attending>();
    torch::manual_seed(5);
    const auto ours = std::make_shared<Attending>();
    for (const auto& module : {theirs, ours}) module->to(at::kCUDA, type);
    std::vector<at::Tensor> batch = {at::randn({3, 9, 16}, options)};
    const std::string_view mask = kind;
    if (mask == "truth") batch.push_back(at::rand({3, 1, 9, 9}, options) < 0.7);
    if (mask == "numbers") batch.push_back(at::randn({9, 9}, options));
    if (mask == "a row") batch.push_back(at::randn({3, 2, 9, 1}, options));
    if (mask == "truth") batch.back().diagonal(0, 2, 3).fill_(true);
    const auto loss_of = [&](Attending& module, const std::vector<at::Tensor>& of) {
      const auto masked = of.size() > 1 ? std::optional(of[1]) : std::nullopt;
      return module.forward(of[0], masked, mask == "causal").to(at::kFloat).square().mean();
    };
    Trainer trainer(
        ours,
        [&](const Batch& of) {
          std::vector<at::Tensor> tensors = {of[0]};
          if (batch.size() > 1) tensors.push_back(of[1]);
          return loss_of(*ours, tensors);
        },
        SGD{.lr = 0});
    const Batch whole = batch.size() > 1 ? Batch{batch[0], batch[1]} : Batch{batch[0]};
    // LibTorch's own refuses a mask of one column for all.
    if (mask == "a row") batch[1] = batch[1].expand({3, 2, 9, 9}).contiguous();
    const auto loss = loss_of(*theirs, batch);
    loss.backward();
    CHECK(trainer.step(whole).loss == doctest::Approx(loss.item<double>()).epsilon(bound));
    const auto gradients = trainer.gradients();
    for (const auto& item : theirs->named_parameters()) {
      CAPTURE(item.key());
      const at::Tensor wanted = item.value().grad().cpu().to(at::kDouble);
      const at::Tensor got = gradients.at(item.key()).cpu().to(at::kDouble);
      CHECK((wanted - got).abs().max().item<double>() <= bound * wanted.abs().max().item<double>());
    }
    const ir::Graph& graph = trainer.graph(whole);
    CHECK(std::ranges::count(graph.nodes, "shoal::attention", &ir::Node::op) == 1);
    CHECK(std::ranges::count(graph.nodes, "shoal::attention_backward", &ir::Node::op) == 1);
  }
}

TEST_CASE("attention on the device is written out where algorithms have to be deterministic") {
  if (!is_there()) return;
  const auto module = std::make_shared<Attending>();
  module->to(at::kCUDA);
  Trainer trainer(
      module, [&](const Batch& of) { return module->forward(of[0], {}, true).mean(); }, SGD{.lr = 0});
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const ir::Graph& graph = trainer.graph(Batch{at::randn({3, 9, 16}, at::kCUDA)});
  at::globalContext().setDeterministicAlgorithms(false, false);
  CHECK(std::ranges::count(graph.nodes, "shoal::attention", &ir::Node::op) == 0);
}

TEST_CASE("where there is a device, a model in main memory is captured as where there is none") {
  if (!is_there()) return;
  const ModelCase& model = model_named("gpt2");
  const Net net = made(model, 0, at::kCPU);
  Trainer trainer(net.module, net.loss, SGD{.lr = 0.1});
  const ir::Graph& graph = trainer.graph(model.batch(at::kDouble));
  CHECK(std::ranges::count(graph.nodes, "shoal::attention", &ir::Node::op) == 2);
}

TEST_CASE("ranks refuse a model on the device, by the name of a weight") {
  if (!is_there()) return;
  const Net net = made(model_named("mlp"), 0);
  const auto world = comm::inproc(1);
  const TrainerOptions options{.parallelism = Parallelism{.mesh = {}, .world = world[0].get()}};
  CHECK_THROWS_WITH_AS(Trainer(net.module, net.loss, SGD{.lr = 0.1}, options),
                       doctest::Contains("is on cuda:0, and ranks exchange tensors of main memory alone"),
                       Error);
}

namespace {
// What ranks tell each other, and no tensor of the model, which has none of these types.
class Control final : public comm::RequestCommunicator {
 public:
  explicit Control(std::unique_ptr<comm::Communicator> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool is_asynchronous() const override { return inner_->is_asynchronous(); }
  std::unique_ptr<comm::Memory> allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  std::unique_ptr<comm::Communicator> subgroup(std::span<const int>) override {
    fail(ErrorKind::Internal, "groups of ranks are of tensors");
  }
  void abort(std::string_view reason, ErrorKind kind) noexcept override { inner_->abort(reason, kind); }

 private:
  std::unique_ptr<comm::Work> submit(comm::Request request) override {
    const DType type = request.in.dtype;
    SHOAL_CHECK(type == DType::Int64 || type == DType::UInt8, Internal, "a tensor of ", name_of(type),
                " goes through main memory");
    return forward(*inner_, request);
  }
  std::unique_ptr<comm::Communicator> inner_;
};
}  // namespace

TEST_CASE("ranks on the device exchange tensors there, and the rest through main memory") {
  // A GPU's memory is no thread's to copy: there it takes NCCL, and a process for each rank.
  if (!is_there() || !device::is_stand_in()) return;
  constexpr int kRanks = 2;
  for (const int stage : {0, 1, 3}) {
    CAPTURE(stage);
    const ModelCase& model = model_named("gpt2");
    const auto options = [](std::optional<Parallelism> parallelism) {
      return TrainerOptions{.clip_norm = 0.5, .seed = kSeed, .parallelism = std::move(parallelism)};
    };
    const Net theirs = made(model, 0.2);
    Trainer alone(theirs.module, theirs.loss, AdamW{.lr = 0.01}, options({}));
    std::vector<double> losses;
    std::vector<Net> nets;
    for (int rank = 0; rank < kRanks; ++rank) nets.push_back(made(model, 0.2));
    for (int step = 1; step <= kUpdates; ++step) losses.push_back(alone.step(batch_of(model, step)).loss);
    std::vector<Batch> batches;
    for (int step = 1; step <= kUpdates; ++step) batches.push_back(batch_of(model, step));
    auto control = comm::inproc(kRanks);
    for (auto& each : control) each = std::make_unique<Control>(std::move(each));
    const auto tensors = comm::inproc(kRanks);
    comm::run_as_threads(std::move(control), [&](comm::Communicator& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      const Parallelism parallelism{
          .mesh = stage == 0 ? mesh_of(kRanks, kRanks, 1, 1) : mesh_of(kRanks, 1, kRanks, 1),
          .world = &world,
          .tensors = tensors[rank].get(),
          .plan = {.zero_stage = stage},
          .limit = std::chrono::seconds(30)};
      Trainer trainer(nets[rank].module, nets[rank].loss, AdamW{.lr = 0.01}, options(parallelism));
      for (std::size_t step = 0; step < batches.size(); ++step) {
        const Batch part = map_tensors(batches[step], [&](const std::string&, const at::Tensor& tensor) {
          const auto [begin, end] = samples_of(parallelism.mesh, world.rank(), tensor.size(0));
          return tensor.narrow(0, begin, end - begin).contiguous();
        });
        const double loss = trainer.step(part).loss;
        SHOAL_CHECK(std::abs(loss - losses[step]) <= 1e-9 * std::abs(losses[step]), Internal, "step ", step,
                    ": loss ", loss, ", one device has ", losses[step]);
      }
    });
  }
}
