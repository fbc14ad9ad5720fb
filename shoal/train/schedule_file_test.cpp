// SPDX-License-Identifier: Apache-2.0
// Stages in the order that a file says, of any schedule that can run.
#include <doctest/doctest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/schedule/csv.h"
#include "shoal/train/trainer.h"

namespace schedule_file_test {

using namespace shoal;
using schedule::Action;
using schedule::Kind;
using schedule::Timeline;
namespace nn = torch::nn;

static nn::Sequential net_of(int layers) {
  torch::manual_seed(5);
  nn::Sequential net;
  for (int i = 0; i < layers; ++i) {
    net->push_back(nn::Linear(5, 5));
    net->push_back(nn::Tanh());
  }
  net->to(at::kDouble);
  return net;
}
static at::Tensor loss_of(nn::Sequential& net, const Batch& batch) {
  return nn::functional::mse_loss(net->forward(batch[0].tensor()), batch[1].tensor());
}
static Batch batch_of(int samples) {
  const at::Tensor x = at::linspace(-2, 2, samples * 5, at::kDouble).view({samples, 5});
  return Batch{x.sin(), x.cos()};
}

// Stages on ranks as they come, each rank doing any action that can go, in the order of a stage's micro-batches: with
// a whole backward here, one in two parts there.
static Timeline any_timeline(std::mt19937& random, int ranks, int stages, int microbatches) {
  const auto below = [&](std::size_t end) { return random() % end; };
  Timeline timeline;
  for (int stage = 0; stage < stages; ++stage)
    timeline.rank_of_stage.push_back(stage < ranks ? stage : static_cast<int>(below(ranks)));
  std::ranges::shuffle(timeline.rank_of_stage, random);
  timeline.actions.resize(static_cast<std::size_t>(ranks));
  std::vector<Action> done;
  const auto is_done = [&](const Action& wanted) {
    return std::ranges::any_of(done, [&](const Action& each) {
      const bool does =
          each.kind == wanted.kind || (each.kind == Kind::Backward && wanted.kind != Kind::Forward);
      return does && each.stage == wanted.stage && each.microbatch == wanted.microbatch;
    });
  };
  for (;;) {
    std::vector<Action> can_go;
    for (int stage = 0; stage < stages; ++stage)
      for (const Kind kind : {Kind::Forward, Kind::Backward, Kind::InputGradient, Kind::WeightGradient}) {
        // Of a backward in two parts all of the first may have gone, and none of the second.
        const bool has_weights = kind == Kind::Backward || kind == Kind::WeightGradient;
        int microbatch = 0;
        while (microbatch < microbatches &&
               is_done({kind == Kind::Backward ? Kind::InputGradient : kind, stage, microbatch}))
          ++microbatch;
        if (microbatch == microbatches) continue;
        if (has_weights && microbatch > 0 && !is_done({Kind::WeightGradient, stage, microbatch - 1}))
          continue;
        const Action action = {kind, stage, microbatch};
        if (std::ranges::all_of(needs(action, stages), is_done)) can_go.push_back(action);
      }
    if (can_go.empty()) return timeline;
    const Action action = can_go[below(can_go.size())];
    done.push_back(action);
    timeline.actions[static_cast<std::size_t>(timeline.rank_of_stage[static_cast<std::size_t>(action.stage)])]
        .push_back(action);
  }
}

static std::filesystem::path write(const Timeline& timeline) {
  const auto path = std::filesystem::temp_directory_path() / "schedule_file_test.csv";
  std::ofstream(path) << to_csv(timeline);
  return path;
}

static void on_ranks(int ranks, const compile::Plan& plan, int layers,
                     const std::function<void(nn::Sequential, const TrainerOptions&)>& body) {
  std::vector<nn::Sequential> nets;
  for (int rank = 0; rank < ranks; ++rank) nets.push_back(net_of(layers));
  comm::run_as_threads(comm::inproc(ranks), [&](comm::Communicator& world) {
    TrainerOptions options;
    options.parallelism = Parallelism{.mesh = mesh_of(ranks, 1, 1, 1, ranks),
                                      .world = &world,
                                      .plan = plan,
                                      .limit = std::chrono::seconds(30)};
    body(nets[static_cast<std::size_t>(world.rank())], options);
  });
}

TEST_CASE("stages in the order of any file that can run give what one device gives") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 12; ++trial) {
    const int ranks = 2 + trial % 2, stages = ranks + trial % 3, microbatches = 1 + trial % 5;
    nn::Sequential alone = net_of(stages);
    Trainer one(alone, loss_of, SGD{.lr = 0.1});
    const double first = one.step(batch_of(10)).loss, second = one.step(batch_of(10)).loss;
    const Timeline timeline = any_timeline(random, ranks, stages, microbatches);
    CAPTURE(to_csv(timeline));
    const auto path = write(timeline);
    compile::Plan plan;
    plan.schedule = path.string();
    for (int stage = 1; stage < stages; ++stage) plan.stages.push_back(concat(2 * stage));
    on_ranks(ranks, plan, stages, [&](nn::Sequential net, const TrainerOptions& options) {
      Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
      CHECK(trainer.step(batch_of(10)).loss == doctest::Approx(first).epsilon(1e-12));
      CHECK(trainer.step(batch_of(10)).loss == doctest::Approx(second).epsilon(1e-12));
      trainer.materialize();
      for (std::size_t i = 0; i < alone->parameters().size(); ++i)
        CHECK(at::allclose(net->parameters()[i], alone->parameters()[i], 1e-12));
    });
  }
}

TEST_CASE("a file runs its first micro-batches, and more of them are refused with the nearest") {
  compile::Plan plan;
  plan.schedule = write(schedule::named("1f1b").build(2, 4)).string();
  on_ranks(2, plan, 2, [&](nn::Sequential net, const TrainerOptions& options) {
    Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
    const std::vector<Batch> three(3, batch_of(2)), five(5, batch_of(2));
    CHECK(trainer.step_over(three).step == 1);
    CHECK(error_of([&] {
            trainer.step_over(five);
          }).ends_with("it has no 5 micro-batches; 4 is the nearest that it can run"));
    CHECK(trainer.step_over(three).step == 2);
  });
  plan.microbatches = 5;
  const auto error = [&](int ranks) {
    std::string text;
    on_ranks(ranks, plan, ranks, [&](nn::Sequential net, const TrainerOptions& options) {
      const std::string each = error_of([&] { Trainer(net, loss_of, SGD{.lr = 0.1}, options); });
      if (options.parallelism->world->rank() == 0) text = each;
    });
    return text;
  };
  CHECK(error(2).ends_with("it has no 5 micro-batches; 4 is the nearest that it can run"));
  plan.microbatches = 0;
  CHECK(error(3).find(
            "it has 2 rows, one a rank, and axis 'pipeline' has 3 ranks. Remedy: a pipeline degree of 2") !=
        std::string::npos);
  plan.stages_per_rank = 2;
  CHECK(error(2).ends_with("it says which stages a rank has, and stages_per_rank is 2; leave that out"));
  plan.stages_per_rank = 0;
  plan.schedule = "nowhere.csv";
  CHECK(error(2).ends_with("there is no file nowhere.csv"));
  plan.schedule = "my file.csv";
  CHECK(error(2).find("the path \"my file.csv\" has a blank or a '#'") != std::string::npos);
}

TEST_CASE("ranks whose files differ are told before a step") {
  compile::Plan plan;
  plan.schedule = "mine.csv";  // has been read
  on_ranks(2, plan, 2, [&](nn::Sequential net, TrainerOptions options) {
    const char* const schedule = options.parallelism->world->rank() == 0 ? "1f1b" : "gpipe";
    options.parallelism->plan.actions = schedule::named(schedule).build(2, 4);
    CHECK(error_of([&] { Trainer(net, loss_of, SGD{.lr = 0.1}, options); }).find("actions ") !=
          std::string::npos);
  });
}

}  // namespace schedule_file_test
