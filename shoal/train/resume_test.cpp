// SPDX-License-Identifier: Apache-2.0
// Going on from a saved state, and several micro-batches for one update.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <variant>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/base/file_system.h"
#include "shoal/checkpoint/reader.h"
#include "shoal/checkpoint/saver.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"
#include "shoal/train/training_state.h"

namespace resume_test {

using namespace shoal;
using at::Tensor;
namespace fs = std::filesystem;
namespace functional = torch::nn::functional;

static torch::nn::Sequential net(at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(3);
  torch::nn::Sequential layers(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::Dropout(0.3),
                               torch::nn::Linear(16, 5));
  layers->to(dtype);
  return layers;
}

static Tensor loss_of(torch::nn::Sequential& model, const Batch& batch) {
  return functional::cross_entropy(model->forward(batch["x"].tensor()), batch["y"]);
}

static Batch batch_of(std::int64_t step, std::int64_t rows = 12, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(static_cast<std::uint64_t>(100 + step));
  return Batch{{"x", at::randn({rows, 8}, dtype)}, {"y", at::randint(5, {rows}, at::kLong)}};
}

static const std::vector<std::pair<const char*, Optimizer>>& optimizers() {
  static const std::vector<std::pair<const char*, Optimizer>> all = {
      {"SGD", SGD{.lr = 0.1, .momentum = 0.9}},
      {"SGD without state", SGD{.lr = 0.1}},
      {"Adam", Adam{.lr = 0.01}},
      {"AdamW", AdamW{.lr = 0.01, .groups = no_decay_below_two_dims()}},
      {"Adagrad", Adagrad{.lr = 0.05}},
      {"RMSprop", RMSprop{.lr = 0.01, .momentum = 0.9, .centered = true}},
      {"AMSGrad", Adam{.lr = 0.01, .amsgrad = true}},
      {"Adadelta", Adadelta{}},
      {"Adamax", Adamax{.lr = 0.01}},
      {"RAdam", RAdam{.lr = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = true}},
      {"Rprop", Rprop{.lr = 0.01}},
      {"Lion", Lion{.lr = 0.01, .weight_decay = 0.1}},
      {"LAMB", LAMB{.lr = 0.01}},
      {"SGD, dampened", SGD{.lr = 0.1, .momentum = 0.9, .dampening = 0.5}},
      {"Adagrad, decayed", Adagrad{.lr = 0.05, .lr_decay = 0.5}},
      {"NAdam", NAdam{.lr = 0.01}},
      {"ASGD", ASGD{.lr = 0.1, .lambd = 0.1, .t0 = 2}},
      {"Adafactor", Adafactor{.lr = 0.01}},
      {"AdamW in bfloat16", AdamW{.lr = 0.01, .state_dtype = DType::BFloat16}},
      {"NAdam in bfloat16", NAdam{.lr = 0.01, .state_dtype = DType::BFloat16}},
  };
  return all;
}

TEST_CASE("every optimizer is among these") {
  std::set<std::size_t> kinds;
  for (const auto& [name, optimizer] : optimizers()) kinds.insert(optimizer.index());
  CHECK(kinds.size() == std::variant_size_v<Optimizer> - 1);  // Muon is for matrices alone
}

TEST_CASE("a run that goes on from a checkpoint has the bits of one that was never interrupted") {
  const fs::path folder = fs::temp_directory_path() / concat("shoal_resume_test_", ::getpid());
  for (const auto& [name, optimizer] : optimizers()) {
    CAPTURE(name);
    const TrainerOptions options = {
        .clip_norm = 1.0, .schedule = {.decay = LearningRateSchedule::Decay::Linear, .total_steps = 8}};
    std::vector<double> losses;
    auto model = net();
    Trainer uninterrupted(model, loss_of, optimizer, options);
    DiskFileSystem files;
    fs::remove_all(folder);
    {
      checkpoint::Saver saver(files, folder);
      for (std::int64_t step = 1; step <= 8; ++step) {
        losses.push_back(uninterrupted.step(batch_of(step)).loss);
        if (step != 4) continue;
        const auto state = uninterrupted.state();
        const auto snapshot = train::snapshot_of(state);
        saver.save(step, train::counts_of(state), snapshot.tensors);
      }
    }
    auto again = net();
    {
      const at::NoGradGuard no_grad;
      for (auto& parameter : again->parameters()) parameter.zero_();
    }
    Trainer resumed(again, loss_of, optimizer, options);
    static_cast<void>(resumed.graph(batch_of(1)));  // whatever was captured before
    const checkpoint::Checkpoint checkpoint(files, folder / "step_00000004");
    resumed.restore(train::read_state(checkpoint, checkpoint.manifest().state));
    for (std::int64_t step = 5; step <= 8; ++step) {
      const auto result = resumed.step(batch_of(step));
      CHECK(result.step == step);
      CHECK(result.loss == losses[static_cast<std::size_t>(step - 1)]);
    }
    const auto ours = resumed.state(), theirs = uninterrupted.state();
    for (const auto& [key, tensor] : theirs.model) CHECK(at::equal(tensor, ours.model.at(key)));
    for (const auto& [key, tensor] : theirs.optimizer) CHECK(at::equal(tensor, ours.optimizer.at(key)));
    CHECK(ours.updates == theirs.updates);
  }
  fs::remove_all(folder);
}

TEST_CASE("all that does not fit a state is listed, and nothing is changed by it") {
  auto model = net();
  Trainer trainer(model, loss_of, AdamW{});
  trainer.step(batch_of(1));
  TrainingState state = trainer.state();
  const Tensor before = model->parameters()[0].detach().clone();
  state.model.erase("0.bias");
  state.model["0.weight"] = at::zeros({16, 9});
  state.model["9.weight"] = at::zeros({2});
  CHECK(error_of([&] { trainer.restore(state); }) ==
        "the checkpoint does not fit the model:\n"
        "  0.bias: absent, wanted f32[16]\n"
        "  0.weight: is f32[16, 9], wanted f32[16, 8]\n"
        "  9.weight: f32[2] is unknown to the model");
  CHECK(at::equal(before, model->parameters()[0]));
  Trainer other(net(), loss_of, SGD{.lr = 0.1, .momentum = 0.5});
  CHECK(error_of([&] { other.restore(trainer.state()); })
            .starts_with("the checkpoint's optimizer state does not fit the model:\n"
                         "  0.bias.momentum_buffer: absent, wanted f32[16]\n"));
}

TEST_CASE("a schedule decays in a line, or at the end alone") {
  using Decay = LearningRateSchedule::Decay;
  const LearningRateSchedule linear{
      .decay = Decay::Linear, .warmup_steps = 4, .total_steps = 12, .min_factor = 0.1};
  CHECK(factor(linear, 2) == doctest::Approx(0.5));
  CHECK(factor(linear, 4) == doctest::Approx(1));
  CHECK(factor(linear, 8) == doctest::Approx(0.55));
  CHECK(factor(linear, 12) == doctest::Approx(0.1));
  CHECK(factor(linear, 99) == doctest::Approx(0.1));
  const LearningRateSchedule stable{
      .decay = Decay::Stable, .warmup_steps = 2, .total_steps = 20, .decay_steps = 4};
  CHECK(factor(stable, 1) == doctest::Approx(0.5));
  for (const std::int64_t step : {2, 10, 16}) CHECK(factor(stable, step) == doctest::Approx(1));
  CHECK(factor(stable, 18) == doctest::Approx(0.5));
  CHECK(factor(stable, 20) == doctest::Approx(0));
  CHECK(error_of([] { factor({.decay = Decay::Linear, .warmup_steps = 5, .total_steps = 5}, 6); }) ==
        "schedule: a decay needs steps after the warm-up, but total_steps is 5, warmup_steps 5");
  CHECK(
      error_of([] {
        factor({.decay = Decay::Stable, .warmup_steps = 5, .total_steps = 9, .decay_steps = 6}, 6);
      }) ==
      "schedule: a decay needs steps after the warm-up, but total_steps is 9, warmup_steps 5, decay_steps 6");
}

// No dropout and no batch norm: there one big batch and its parts are the same function.
static torch::nn::Sequential plain_net() {
  torch::manual_seed(5);
  torch::nn::Sequential layers(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 5));
  layers->to(at::kDouble);
  return layers;
}

namespace {

struct LossCase {
  const char* name;
  Tensor (*loss)(torch::nn::Sequential&, const Batch&);
  const char* weighing;  // a part of what is said
};

}  // namespace

static Tensor logits_of(torch::nn::Sequential& model, const Batch& batch) {
  return model->forward(batch["x"].tensor());
}

static const LossCase kLosses[] = {
    {"cross entropy with ignored targets",
     [](torch::nn::Sequential& model, const Batch& batch) {
       return functional::cross_entropy(logits_of(model, batch), batch["y"]);
     },
     "as many targets as count (aten::nll_loss_forward)"},
    {"cross entropy with weights of the classes, scaled",
     [](torch::nn::Sequential& model, const Batch& batch) {
       const auto weight = at::arange(1, 6, at::kDouble);
       return 0.5 * functional::cross_entropy(logits_of(model, batch), batch["y"],
                                              functional::CrossEntropyFuncOptions().weight(weight));
     },
     "as many targets as count (aten::nll_loss_forward)"},
    {"a masked mean written by hand",
     [](torch::nn::Sequential& model, const Batch& batch) {
       const auto mask = batch["y"].tensor().ne(-100).to(at::kDouble);
       return (logits_of(model, batch).square().sum(1) * mask).sum() / mask.sum();
     },
     "as many targets as count (aten::div.Tensor)"},
    {"a mean over elements",
     [](torch::nn::Sequential& model, const Batch& batch) {
       return at::mse_loss(logits_of(model, batch), batch["x"].tensor().narrow(1, 0, 5));
     },
     "as many elements as they have (aten::mse_loss)"},
    {"a sum",
     [](torch::nn::Sequential& model, const Batch& batch) { return logits_of(model, batch).square().sum(); },
     "a sum over micro-batches (aten::sum)"},
};

TEST_CASE("micro-batches of any sizes with ignored targets give the one big batch's update") {
  for (const auto& [name, loss, weighing] : kLosses) {
    CAPTURE(name);
    auto whole_model = plain_net(), parts_model = plain_net();
    const TrainerOptions options = {.clip_norm = 0.5};
    Trainer whole(whole_model, loss, AdamW{.lr = 0.01}, options);
    Trainer parts(parts_model, loss, AdamW{.lr = 0.01}, options);
    for (std::int64_t step = 1; step <= 3; ++step) {
      const Batch batch = batch_of(step, 24, at::kDouble);
      const Tensor x = batch["x"], y = batch["y"];
      y.slice(0, 0, 24, 3).fill_(-100);
      y.narrow(0, 9, 4).fill_(-100);  // one micro-batch has no target that counts
      std::vector<Batch> microbatches;
      std::int64_t begin = 0;
      for (const std::int64_t rows : {6, 3, 4, 6, 5}) {
        microbatches.emplace_back(
            Batch::Map{{"x", x.narrow(0, begin, rows)}, {"y", y.narrow(0, begin, rows)}});
        begin += rows;
      }
      const StepResult one = whole.step(batch), many = parts.step_over(microbatches);
      CHECK(many.loss == doctest::Approx(one.loss).epsilon(1e-12));
      CHECK(many.grad_norm == doctest::Approx(one.grad_norm).epsilon(1e-12));
      CHECK(many.step == step);
      const auto gradients = whole.gradients();
      for (const auto& [key, gradient] : parts.gradients())
        CHECK(at::allclose(gradient, gradients.at(key), 1e-11, 1e-13));
      CHECK(parts.weighing(microbatches[0]).find(weighing) != std::string::npos);
    }
    for (const auto& [key, tensor] : whole.state().model)
      CHECK(at::allclose(tensor, parts.state().model.at(key), 1e-10, 1e-12));
  }
}

TEST_CASE("a loss that is no sum divided by a count weighs micro-batches alike, and says so") {
  auto model = plain_net();
  const auto loss = [](torch::nn::Sequential& net, const Batch& batch) {
    return functional::cross_entropy(logits_of(net, batch), batch["y"]) +
           logits_of(net, batch).square().mean();
  };
  Trainer trainer(model, loss, SGD{.lr = 0});
  const Batch a = batch_of(1, 4, at::kDouble), b = batch_of(2, 8, at::kDouble);
  CHECK(trainer.weighing(a).find("each micro-batch weighs the same") == 0);
  const double mean = (trainer.evaluate(a) + trainer.evaluate(b)) / 2;
  CHECK(trainer.step_over(std::vector<Batch>{a, b}).loss == doctest::Approx(mean).epsilon(1e-12));
}

TEST_CASE("a step over micro-batches that fails has changed nothing, and one without targets says so") {
  auto model = net(at::kDouble);
  Trainer trainer(model, loss_of, AdamW{});
  const auto copies = [&] {
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, tensor] : trainer.state().model) tensors.emplace(name, tensor.clone());
    return tensors;
  };
  trainer.step_over(std::vector<Batch>{batch_of(1, 4, at::kDouble), batch_of(2, 4, at::kDouble)});
  const auto before = copies();
  const Batch bad = batch_of(3, 4, at::kDouble);
  bad["x"].tensor()[1][2] = std::nan("");
  const std::string error =
      error_of([&] { trainer.step_over(std::vector<Batch>{batch_of(2, 4, at::kDouble), bad}); });
  CHECK(error.find("the loss of step 2 is nan: a value that is not finite first appears in module \"0\"") !=
        std::string::npos);
  const Batch ignored = batch_of(3, 4, at::kDouble);
  ignored["y"].tensor().fill_(-100);
  CHECK(error_of([&] {
          trainer.step_over(std::vector<Batch>{ignored, ignored});
        }).find("no target of step 2 counts") != std::string::npos);
  for (const auto& [name, tensor] : before) CHECK(at::equal(tensor, trainer.state().model.at(name)));
  CHECK(
      trainer.step_over(std::vector<Batch>{batch_of(1, 4, at::kDouble), batch_of(2, 4, at::kDouble)}).step ==
      2);
}

TEST_CASE("micro-batches draw random numbers of their own") {
  torch::nn::Sequential model(torch::nn::Dropout(0.5));
  model->push_back(torch::nn::Linear(torch::nn::LinearOptions(64, 1).bias(false)));
  const auto loss = [](torch::nn::Sequential& net, const Batch& batch) {
    return net->forward(batch[0].tensor()).sum();
  };
  Trainer trainer(model, loss, SGD{.lr = 0});
  const Batch ones = Batch{at::ones({1, 64})};
  const double alone = trainer.step(ones).loss;
  Trainer again(model, loss, SGD{.lr = 0});
  const double both = again.step_over(std::vector<Batch>{ones, ones}).loss;
  CHECK(std::abs(both - 2 * alone) > 1e-6);
  Trainer repeated(model, loss, SGD{.lr = 0});
  CHECK(repeated.step_over(std::vector<Batch>{ones, ones}).loss == both);
}

namespace {
// A folder of the test's own, gone at its end.
struct Folder {
  fs::path path = fs::temp_directory_path() / concat("shoal_save_test_", ::getpid());
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
};

// Steps of one of several ranks that are threads, on its part of each batch.
void on_ranks(int count, const std::function<void(Trainer&, comm::Communicator&)>& act) {
  std::vector<torch::nn::Sequential> models;
  for (int rank = 0; rank < count; ++rank) models.push_back(net(at::kDouble));
  comm::run_as_threads(comm::inproc(count), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    Trainer trainer(models[static_cast<std::size_t>(world.rank())], loss_of, AdamW{.lr = 0.01},
                    {.parallelism = Parallelism{.mesh = mesh_of(count, 1, count, 1), .world = &world}});
    act(trainer, world);
  });
}

Batch part_of(const Batch& batch, const comm::Communicator& world) {
  const std::int64_t rows = batch["y"].tensor().size(0), each = rows / world.size();
  return map_tensors(batch, [&](const std::string&, const Tensor& tensor) {
    return tensor.narrow(0, each * world.rank(), each);
  });
}
}  // namespace

TEST_CASE("save and load: one call each, whatever number of ranks has saved") {
  const Folder folder;
  std::vector<Batch> batches;
  for (std::int64_t step = 1; step <= 6; ++step) batches.push_back(batch_of(step, 12, at::kDouble));
  std::vector<double> losses;
  {
    auto model = net(at::kDouble);
    Trainer trainer(model, loss_of, AdamW{.lr = 0.01});
    CHECK(!trainer.load(folder.path));
    for (std::size_t step = 0; step < 6; ++step) losses.push_back(trainer.step(batches[step]).loss);
  }
  on_ranks(2, [&](Trainer& trainer, comm::Communicator& world) {
    CHECK(!trainer.load(folder.path));
    for (std::size_t step = 0; step < 3; ++step) {
      CHECK(std::fabs(trainer.step(part_of(batches[step], world)).loss - losses[step]) < 1e-12);
      trainer.save(folder.path, concat("read to ", step), 2);
    }
    trainer.wait_for_saves();
  });
  CHECK(!fs::exists(folder.path / "step_00000001"));  // two stay
  CHECK(fs::exists(folder.path / "step_00000002"));
  for (const int count : {1, 3}) {
    CAPTURE(count);
    on_ranks(count, [&](Trainer& trainer, comm::Communicator& world) {
      CHECK(trainer.load(folder.path) == "read to 2");
      for (std::size_t step = 3; step < 6; ++step)
        CHECK(std::fabs(trainer.step(part_of(batches[step], world)).loss - losses[step]) < 1e-12);
    });
  }
}

TEST_CASE(
    "a save that cannot be written is thrown by the next one, and by waiting; what is damaged is said") {
  const Folder folder;
  auto model = net();
  Trainer trainer(model, loss_of, SGD{.lr = 0.1});
  trainer.step(batch_of(1));
  trainer.save(folder.path);
  trainer.wait_for_saves();
  CHECK(error_of([&] {
          trainer.save(folder.path, "\xff");
        }).find("the note of a checkpoint is text in UTF-8") != std::string::npos);
  CHECK(error_of([&] { trainer.save(folder.path, "", -1); }).find("save keeps the newest -1 checkpoints") !=
        std::string::npos);
  for (int step = 0; step < 3; ++step) {
    trainer.step(batch_of(1));
    trainer.save(folder.path, "", step < 2 ? 10 : 1);  // another number to keep is followed
  }
  trainer.wait_for_saves();
  CHECK(!fs::exists(folder.path / "step_00000003"));
  const fs::path blocked = folder.path / "file";
  std::ofstream(blocked) << "a file";
  trainer.save(blocked / "in");
  CHECK(error_of([&] {
          trainer.wait_for_saves();
        }).find("the checkpoints before are as they were. The model is as it was") != std::string::npos);
  fs::resize_file(folder.path / "step_00000004" / "model-0.safetensors", 10);
  CHECK(error_of([&] { trainer.load(folder.path); }).find("none of its checkpoints is whole") !=
        std::string::npos);
}

}  // namespace resume_test
