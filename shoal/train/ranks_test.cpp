// SPDX-License-Identifier: Apache-2.0
// What ranks that train together tell each other when something is not as it has to be.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/serialize.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"

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
