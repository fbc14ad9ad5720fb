// SPDX-License-Identifier: Apache-2.0
// What ranks that train together tell each other when something is not as it has to be.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"
#include "shoal/train/without_trace.h"

namespace ranks_test {

using namespace shoal;
using at::Tensor;

static constexpr int kRanks = 2;

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

static Tensor loss_of(std::shared_ptr<Scaled>& model, const Batch& batch) {
  return model->forward(batch["x"].tensor()).square().mean();
}

static Batch batch_of(std::int64_t rows) {
  return Batch{{"x", at::arange(4 * rows, at::kDouble).reshape({rows, 4})}};
}

// Each rank is a thread with a model of its own. What each rank's act throws, by rank.
static std::vector<std::string> errors_on_ranks(
    const std::function<void(int rank, std::shared_ptr<Scaled> model, Parallelism)>& act,
    int zero_stage = 0) {
  std::vector<std::shared_ptr<Scaled>> models;
  torch::manual_seed(1);
  for (int rank = 0; rank < kRanks; ++rank) {
    models.push_back(std::make_shared<Scaled>());
    models.back()->to(at::kDouble);
  }
  std::vector<std::string> errors(kRanks);
  comm::run_as_threads(comm::inproc(kRanks), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    const auto rank = static_cast<std::size_t>(world.rank());
    const Parallelism parallelism{
        .mesh = zero_stage == 3 ? mesh_of(kRanks, 1, kRanks, 1) : mesh_of(kRanks, kRanks, 1, 1),
        .world = &world,
        .plan = {.zero_stage = zero_stage},
        .limit = std::chrono::seconds(20)};
    errors[rank] = error_of([&] { act(world.rank(), models[rank], parallelism); });
  });
  return errors;
}

TEST_CASE("a rank whose model has changed ends the step of all ranks, with the same words") {
  const auto errors = errors_on_ranks([](int rank, auto model, const Parallelism& parallelism) {
    Trainer trainer(model, loss_of, SGD{.lr = 1e-3}, {.parallelism = parallelism});
    trainer.step(batch_of(3));
    if (rank == 1) model->beta = 0.5;
    const Tensor before = model->fc->weight.detach().clone();
    const auto first = error_of([&] { trainer.step(batch_of(3)); });
    CHECK(at::equal(before, model->fc->weight));
    model->beta = 1;
    trainer.step(batch_of(3));  // and all go on
    fail(ErrorKind::InvalidInput, first);
  });
  CHECK(contains(errors[0], "(other=1.0 then, other=0.5 now)"));
  CHECK(contains(errors[0], "(rank 1)"));
  CHECK(errors[0] == errors[1]);
}

// What LibTorch says where the act throws.
static std::string torch_error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST_CASE(
    "a parameter in parts says so when it is read, written or saved, and is whole when the trainer has "
    "gone") {
  const Batch batch = batch_of(2);
  Tensor wanted;
  const auto errors = errors_on_ranks(
      [&](int rank, std::shared_ptr<Scaled> model, Parallelism parallelism) {
        const Tensor weight = model->fc->weight;
        {
          Trainer trainer(model, loss_of, SGD{.lr = 0.1}, {.parallelism = parallelism});
          trainer.step(batch);
          const std::vector<std::function<void()>> uses = {
              [&] { (void)weight.add(1); }, [&] { weight.detach().zero_(); },
              [&] { (void)weight[0][0].item<double>(); }, [&] { model->forward(batch["x"].tensor()); },
              [&] {
                std::ostringstream file;
                torch::save(model, file);
              }};
          for (const auto& use : uses) {
            const std::string text = torch_error_of(use);
            CHECK_MESSAGE(contains(text, "has no data here: the ranks keep it in parts"), text);
            CHECK_MESSAGE(contains(text, "materialize()"), text);
          }
          trainer.materialize();
          CHECK(weight.add(1).defined());
          trainer.step(batch);
          if (rank == 0)
            wanted = trainer.state().model.at("fc.weight").clone();
          else
            trainer.state();
          CHECK(torch_error_of(uses[0]) != "");
        }
        if (rank == 0) CHECK(weight.equal(wanted));
        CHECK(weight.add(1).defined());
      },
      3);
  for (const std::string& error : errors) CHECK_MESSAGE(error.empty(), error);
}

// A GAN's: each of two models is trained by a loss that runs the other one too. What becomes of both.
static std::vector<Tensor> trained_in_turns(const std::shared_ptr<Scaled>& a,
                                            const std::shared_ptr<Scaled>& b,
                                            const std::optional<Parallelism>& parallelism) {
  const auto loss_beside = [](const std::shared_ptr<Scaled>& other) {
    return [other](std::shared_ptr<Scaled>& model, const Batch& batch) {
      const Tensor& x = batch["x"].tensor();
      return (model->forward(x) - other->forward(x).sin()).square().mean();
    };
  };
  Trainer first(a, loss_beside(b), SGD{.lr = 1e-3}, {.parallelism = parallelism});
  Trainer second(b, loss_beside(a), Adam{.lr = 1e-2}, {.parallelism = parallelism});
  const auto part = [&](std::int64_t rows) {
    if (!parallelism) return batch_of(rows);
    const auto mine = samples_of(parallelism->mesh, parallelism->world->rank(), rows);
    return Batch{{"x", batch_of(rows)["x"].tensor().slice(0, mine.begin, mine.end)}};
  };
  for (const std::int64_t rows : {4, 4, 6, 4, 4}) {
    first.step(part(rows));
    second.step(part(rows));
  }
  first.evaluate(part(4));
  second.evaluate(part(4));
  first.end();
  second.end();
  return {a->fc->weight, a->fc->bias, b->fc->weight, b->fc->bias};
}

static void fill(const std::shared_ptr<Scaled>& model, double begin) {
  const at::NoGradGuard no_grad;
  for (Tensor& parameter : model->parameters())
    parameter.copy_(at::arange(parameter.numel(), at::kDouble).add(begin).cos().view_as(parameter));
}

TEST_CASE(
    "a loss that runs another trainer's model has its parameters, also where ranks keep them in parts") {
  const auto made = [](double begin) {
    auto model = std::make_shared<Scaled>();
    model->to(at::kDouble);
    fill(model, begin);
    return model;
  };
  const auto wanted = trained_in_turns(made(1), made(9), {});
  const auto errors = errors_on_ranks(
      [&](int, std::shared_ptr<Scaled> model, const Parallelism& parallelism) {
        fill(model, 1);
        const auto trained = trained_in_turns(model, made(9), parallelism);
        for (std::size_t i = 0; i < wanted.size(); ++i)
          CHECK(at::allclose(trained[i], wanted[i], 1e-12, 1e-12));
      },
      3);
  for (const std::string& error : errors) CHECK_MESSAGE(error.empty(), error);
}

// Two trainers of one model, each with its own loss; what it has then, after one of them went back to a checkpoint.
static std::vector<Tensor> trained_by_two(const std::shared_ptr<Scaled>& model,
                                          const std::optional<Parallelism>& parallelism) {
  const auto part = [&](std::int64_t rows) {
    if (!parallelism) return batch_of(rows);
    const auto mine = samples_of(parallelism->mesh, parallelism->world->rank(), rows);
    return Batch{{"x", batch_of(rows)["x"].tensor().slice(0, mine.begin, mine.end)}};
  };
  Trainer first(model, loss_of, SGD{.lr = 1e-3}, {.parallelism = parallelism});
  Trainer second(model,
                 [](std::shared_ptr<Scaled>& net, const Batch& batch) {
                   return net->forward(batch["x"].tensor()).cos().sum();
                 },
                 Adam{.lr = 1e-2}, {.parallelism = parallelism});
  first.step(part(4));
  second.step(part(4));
  second.step(part(6));
  first.step(part(4));
  const auto before = first.state();
  std::map<std::string, Tensor> copies;
  for (const auto& [name, tensor] : before.model) copies[name] = tensor.clone();
  second.step(part(4));
  TrainingState back = first.state();
  back.model = copies;
  first.restore(back);
  second.step(part(4));
  first.evaluate(part(4));
  second.end();
  first.end();  // has been trained by the other one since
  return {model->fc->weight.detach().clone(), model->fc->bias.detach().clone()};
}

TEST_CASE("two trainers of one model go on from each other's, also where ranks keep it in parts") {
  const auto alone = std::make_shared<Scaled>();
  alone->to(at::kDouble);
  fill(alone, 1);
  const auto wanted = trained_by_two(alone, {});
  const auto errors = errors_on_ranks(
      [&](int, std::shared_ptr<Scaled> model, const Parallelism& parallelism) {
        fill(model, 1);
        const auto trained = trained_by_two(model, parallelism);
        for (std::size_t i = 0; i < wanted.size(); ++i)
          CHECK(at::allclose(trained[i], wanted[i], 1e-12, 1e-12));
      },
      3);
  for (const std::string& error : errors) CHECK_MESSAGE(error.empty(), error);
}

namespace {

struct Normed : torch::nn::Module {
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(4, 2));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(2));
  Tensor forward(const Tensor& x) { return norm(fc(x)); }
};

}  // namespace

// A GAN as its paper's code has it, but for the generator's second forward: the statistics are moved once a step.
TEST_CASE("a loss writes the buffers of a module beside, or leaves no trace there") {
  const auto make = [] {
    torch::manual_seed(3);
    auto model = std::make_shared<Normed>();
    model->to(at::kDouble);
    return model;
  };
  for (const bool traces : {true, false}) {
    const auto trained = make(), beside = make(), eager = make(), other = make();
    const auto loss_with = [traces](std::shared_ptr<Normed>& model, const std::shared_ptr<Normed>& generator,
                                    const Batch& batch) {
      const Tensor& x = batch["x"].tensor();
      const auto forward = [&] { return generator->forward(x); };
      const Tensor fake = traces ? forward() : without_trace(*generator, forward);
      return (model->forward(x) - fake.detach()).square().mean();
    };
    Trainer trainer(trained, [&](auto& model, const Batch& batch) { return loss_with(model, beside, batch); },
                    SGD{.lr = 0.1}, {.beside = {beside}});
    auto net = eager;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (const std::int64_t rows : {4, 4, 6}) {
      trainer.step(batch_of(rows));
      optimizer.zero_grad();
      loss_with(net, other, batch_of(rows)).backward();
      optimizer.step();
      const at::NoGradGuard no_grad;  // what is beside is trained by somebody else
      for (const auto& model : {beside, other}) model->fc->weight.mul_(1.01);
    }
    CHECK(at::allclose(trained->fc->weight, eager->fc->weight, 1e-12, 1e-12));
    CHECK(at::allclose(trained->norm->running_var, eager->norm->running_var, 1e-12, 1e-12));
    CHECK(at::allclose(beside->norm->running_var, other->norm->running_var, 1e-12, 1e-12));
    CHECK(beside->norm->num_batches_tracked.item<int>() == (traces ? 3 : 0));
  }
}

TEST_CASE("what one rank alone writes into the model is told before the next step") {
  const std::vector<std::pair<std::string, std::function<void(Normed&)>>> writes = {
      {"buffer norm.", [](Normed& model) { model.forward(batch_of(4)["x"].tensor()); }},
      {"parameter fc.weight", [](Normed& model) {
         const at::NoGradGuard no_grad;
         model.fc->weight.mul_(1.5);
       }}};
  for (const int zero_stage : {0, 3})
    for (const auto& [what, write] : writes) {
      const auto errors = errors_on_ranks(
          [&, &act = write](int rank, const std::shared_ptr<Scaled>&, const Parallelism& parallelism) {
            auto model = std::make_shared<Normed>();
            model->to(at::kDouble);
            Trainer trainer(
                model, [](auto& net, const Batch& batch) { return net->forward(batch["x"].tensor()).sum(); },
                SGD{.lr = 0.1}, {.parallelism = parallelism});
            trainer.step(batch_of(4));
            trainer.materialize();
            act(*model);  // on both
            trainer.step(batch_of(4));
            trainer.materialize();
            trainer.step(batch_of(4));
            trainer.materialize();
            if (rank == 0) act(*model);
            trainer.step(batch_of(4));
          },
          zero_stage);
      for (const std::string& error : errors) {
        CHECK_MESSAGE(contains(error, "changed between calls: " + what), error);
        CHECK(contains(error, "on all ranks alike"));
      }
    }
}

TEST_CASE("inputs that every rank has whole are named by themselves or by what they are in") {
  const auto loss = [](const std::shared_ptr<Scaled>& model, const Batch& batch) {
    const Tensor& scale = batch["w"]["v"].tensor();
    return (model->forward(batch["x"].tensor()) * scale.mean()).square().mean();
  };
  std::vector<double> losses;
  for (const char* name : {"w", "w.v", "v", "w.v.more"}) {
    const auto errors = errors_on_ranks([&](int rank, auto model, Parallelism parallelism) {
      parallelism.plan.whole_inputs = {name};
      Trainer trainer(model, loss, SGD{.lr = 0.1}, {.parallelism = parallelism});
      const Batch batch = {{"x", at::arange(8, at::kDouble).reshape({2, 4})},
                           {"w", Batch{{"v", at::arange(3, at::kDouble)}}}};
      const double got = trainer.step(batch).loss;
      if (rank == 0) losses.push_back(got);
    });
    const bool is_known = std::string(name) == "w" || std::string(name) == "w.v";
    CHECK(errors[0].empty() == is_known);
    if (!is_known)
      CHECK(contains(errors[0], concat("has ", name, ", and the tensors of the batch are w.v, x")));
  }
  REQUIRE(losses.size() == 2);
  CHECK(losses[0] == losses[1]);
}

TEST_CASE("ranks check at the same steps, when rank 0's clock says so") {
  std::vector<int> calls(kRanks);
  const auto errors = errors_on_ranks([&](int rank, auto model, const Parallelism& parallelism) {
    const double share = rank == 0 ? 1e9 : 0;
    Trainer trainer(model, loss_of, SGD{.lr = 1e-3}, {.spot_check_share = share, .parallelism = parallelism});
    for (int step = 0; step < 11; ++step) trainer.step(batch_of(3));
    calls[static_cast<std::size_t>(rank)] = model->calls;
  });
  CHECK(errors == std::vector<std::string>(kRanks));
  CHECK(calls == std::vector(kRanks, 2 + 3 + 3));
}

TEST_CASE("ranks with other learning rates, schedules or seeds are told before anything is updated") {
  for (int which = 0; which < 3; ++which) {
    const auto errors = errors_on_ranks([&](int rank, auto model, const Parallelism& parallelism) {
      TrainerOptions options{.parallelism = parallelism};
      if (which == 1 && rank == 1)
        options.schedule = {
            .decay = LearningRateSchedule::Decay::Linear, .warmup_steps = 4, .total_steps = 9};
      if (which == 2) options.seed = static_cast<std::uint64_t>(rank);
      Trainer trainer(model, loss_of, SGD{.lr = which == 0 && rank == 1 ? 0.25 : 0.5}, options);
      trainer.evaluate(batch_of(3));
      trainer.step(batch_of(3));
    });
    CHECK(errors[0] == errors[1]);
    const auto* wanted =
        which == 0   ? "rank 0 has 'seed 0, learning rates 0.5', rank 1 has 'seed 0, learning rates 0.25'"
        : which == 1 ? "rank 1 has 'seed 0, learning rates 0.125'"
                     : "rank 1 has 'seed 1, learning rates 0.5'";
    CHECK(contains(errors[0], wanted));
  }
}

}  // namespace ranks_test
