// SPDX-License-Identifier: Apache-2.0
// Models whose rows are in tables train as those do whose rows are in memory, on any number of ranks and servers.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/ps/client.h"
#include "shoal/train/trainer.h"
#include "shoal/train/two_tables_test.h"

namespace tables_test {

using namespace shoal;
using namespace shoal::two_tables;

static constexpr std::int64_t kSteps = 4;

// What a run leaves.
struct Run {
  std::vector<double> losses;
  Rows rows;
  double evaluated = 0;
};

static StepResult step(Trainer& trainer, std::int64_t number, sharding::Range part, bool in_two) {
  if (!in_two) return trainer.step(batch_of(number, part.begin, part.end));
  const std::vector<Batch> parts = {batch_of(number, part.begin, part.end),
                                    batch_of(number + 50, part.begin, part.end)};
  return trainer.step_over(parts);
}

using Extra = std::function<at::Tensor(const at::Tensor&)>;

static Run run(const Optimizer& optimizer, const std::optional<TableOptions>& tables, bool in_two,
               const Extra& extra = {}) {
  auto model = model_of();
  model->extra = extra;
  TrainerOptions options;
  if (tables) options.tables = *tables;
  Trainer trainer(model, loss_of, optimizer, options);
  Run run;
  for (std::int64_t number = 0; number < kSteps; ++number)
    run.losses.push_back(step(trainer, number, {0, 14}, in_two).loss);
  run.evaluated = trainer.evaluate(batch_of(9, 0, 14));
  run.rows = rows_of(trainer, *model);
  return run;
}

static Run run_on_servers(const Optimizer& optimizer, int ranks, std::uint32_t loops, bool in_two,
                          int zero_stage = 0, bool asks_ahead = false, const TableOptions& tables = kBoth,
                          const Extra& extra = {}) {
  const rendezvous::Key key = rendezvous::make_key();
  const ps::Server server(key, {.loops = loops, .all_loops = loops});
  std::vector<std::shared_ptr<Clicks>> models;
  for (int rank = 0; rank < ranks; ++rank) models.push_back(model_of(static_cast<std::uint64_t>(1 + rank)));
  for (const auto& model : models) model->extra = extra;
  Run run;
  comm::run_as_threads(comm::inproc(ranks), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    ps::Client client(key, server.endpoints());
    auto model = models[static_cast<std::size_t>(world.rank())];
    Parallelism parallelism{
        .mesh = zero_stage == 0 ? mesh_of(ranks, ranks, 1, 1) : mesh_of(ranks, 1, ranks, 1),
        .world = &world,
        .plan = {.zero_stage = zero_stage},
        .limit = std::chrono::seconds(30)};
    const sharding::Range part = samples_of(parallelism.mesh, world.rank(), 14);
    Trainer trainer(model, loss_of, optimizer,
                    {.parallelism = parallelism,
                     .tables = {.tables = &client,
                                .placements = tables.placements,
                                .exchange = {.cache_rows = asks_ahead ? 1000U : 0U}}});
    for (std::int64_t number = 0; number < kSteps; ++number) {
      if (asks_ahead) trainer.expect(batch_of(number + 1, part.begin, part.end));
      const double loss = step(trainer, number, part, in_two).loss;
      if (world.rank() == 0) run.losses.push_back(loss);
    }
    const double evaluated = trainer.evaluate(batch_of(9, part.begin, part.end));
    trainer.materialize();
    Rows rows = rows_of(trainer, *model);
    if (world.rank() != 0) return;
    run.evaluated = evaluated;
    run.rows = std::move(rows);
  });
  return run;
}

static double largest_difference(const Run& a, const Run& b) {
  double largest = std::abs(a.evaluated - b.evaluated);
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    largest = std::max(largest, std::abs(a.losses[i] - b.losses[i]));
  for (const auto& [name, tensor] : a.rows)
    largest = std::max(largest, (tensor - b.rows.at(name)).abs().max().item<double>());
  return largest;
}

TEST_CASE("rows in tables of the process are trained as rows in memory") {
  for (const Optimizer& optimizer : {Optimizer(SGD{.lr = 0.5}), Optimizer(Adagrad{.lr = 0.1})})
    for (const bool in_two : {false, true}) {
      const Run wanted = run(optimizer, std::nullopt, in_two), got = run(optimizer, kBoth, in_two);
      CHECK(largest_difference(wanted, got) < 1e-12);
      CHECK(got.losses.front() != got.losses.back());
    }
}

TEST_CASE("ranks and servers have the rows of one device, and servers change no bit") {
  const Optimizer optimizer = Adagrad{.lr = 0.1};
  for (const bool in_two : {false, true}) {
    const Run wanted = run(optimizer, std::nullopt, in_two);
    for (const int ranks : {1, 2, 3}) {
      const Run one = run_on_servers(optimizer, ranks, 1, in_two),
                four = run_on_servers(optimizer, ranks, 4, in_two);
      CAPTURE(ranks);
      CAPTURE(in_two);
      CHECK(largest_difference(wanted, one) < 1e-12);
      CHECK(largest_difference(one, four) == 0);
    }
  }
  CHECK(largest_difference(run(optimizer, std::nullopt, true), run_on_servers(optimizer, 2, 2, true, 3)) <
        1e-12);
  CHECK(largest_difference(run(optimizer, std::nullopt, false), run_on_servers(optimizer, 3, 2, false, 1)) <
        1e-12);
}

TEST_CASE("parameters that are read whole are in tables, in the process and on servers") {
  const Extra extras[] = {{}, [](const at::Tensor& weight) { return weight.square().mean(); }};
  for (const Extra& extra : extras)
    for (const Optimizer& optimizer : {Optimizer(SGD{.lr = 0.5}), Optimizer(Adagrad{.lr = 0.1})})
      for (const bool in_two : {false, true}) {
        CAPTURE(in_two);
        const Run wanted = run(optimizer, std::nullopt, in_two, extra);
        CHECK(largest_difference(wanted, run(optimizer, kAll, in_two, extra)) < 1e-12);
        const Run one = run_on_servers(optimizer, 2, 1, in_two, 0, false, kAll, extra),
                  four = run_on_servers(optimizer, 2, 4, in_two, 0, true, kAll, extra);
        CHECK(largest_difference(wanted, one) < 1e-12);
        CHECK(largest_difference(one, four) == 0);
      }
}

TEST_CASE("rows that are asked for while a step is worked on are those that the next one would read") {
  const Optimizer optimizer = Adagrad{.lr = 0.1};
  for (const bool in_two : {false, true})
    for (const int ranks : {1, 2})
      CHECK(largest_difference(run_on_servers(optimizer, ranks, 2, in_two),
                               run_on_servers(optimizer, ranks, 2, in_two, 0, true)) == 0);
}

TEST_CASE("a day ends between two steps of all ranks, and they read what is left") {
  TableOptions options = kBoth;
  for (TablePlacement& placement : options.placements) placement.scored = true;
  options.placements[0].life = {.decay = 0.5, .max_unseen_days = 1};
  const auto run = [&](int ranks, bool keeps) {
    const rendezvous::Key key = rendezvous::make_key();
    const ps::Server server(key, {.loops = 2, .all_loops = 2});
    std::vector<std::shared_ptr<Clicks>> models;
    for (int rank = 0; rank < ranks; ++rank) models.push_back(model_of());
    std::vector<double> losses;
    std::map<std::string, ps::Shrunk> went;
    comm::run_as_threads(comm::inproc(ranks), [&](comm::Communicator& world) {
      at::set_num_threads(1);
      ps::Client client(key, server.endpoints());
      const Parallelism parallelism{.mesh = mesh_of(ranks, ranks, 1, 1), .world = &world};
      const sharding::Range part = samples_of(parallelism.mesh, world.rank(), 14);
      TableOptions own = options;
      own.tables = &client;
      own.exchange.cache_rows = keeps ? 1000 : 0;
      auto model = models[static_cast<std::size_t>(world.rank())];
      Trainer trainer(model, loss_of, Adagrad{.lr = 0.1}, {.parallelism = parallelism, .tables = own});
      for (std::int64_t number = 0; number < 6; ++number) {
        if (keeps) trainer.expect(batch_of(number + 1, part.begin, part.end));
        const double loss = trainer.step(batch_of(number, part.begin, part.end)).loss;
        if (number == 1) trainer.materialize();
        const auto ended = trainer.end_day(static_cast<std::uint32_t>(number + 1));
        if (world.rank() != 0) {
          CHECK(ended.empty());
          continue;
        }
        losses.push_back(loss);
        if (number == 5) went = ended;
      }
    });
    return std::pair(losses, went);
  };
  const auto [losses, went] = run(1, false);
  CHECK(went.size() == 2);
  CHECK(went.at("items.weight").unseen > 0);
  CHECK(went.at("items.weight").rows < kIds);  // of days before
  CHECK(to_text(went.at("users.weight")) == to_text(ps::Shrunk{.rows = kIds}));
  for (const int ranks : {1, 2})
    for (const bool keeps : {false, true}) {
      const auto [others, others_went] = run(ranks, keeps);
      CHECK(to_text(others_went.at("items.weight")) == to_text(went.at("items.weight")));
      for (std::size_t i = 0; i < losses.size(); ++i)
        CHECK(others[i] == doctest::Approx(losses[i]).epsilon(1e-12));
    }
}

// By hand: of each id, how often samples that were clicked have it, and how often others.
static std::map<std::int64_t, std::pair<int, int>> counted(const char* table) {
  std::map<std::int64_t, std::pair<int, int>> counts;
  const auto count = [&](const at::Tensor& ids, const at::Tensor& clicked) {
    for (std::int64_t i = 0; i < ids.numel(); ++i) {
      const auto id = ids.reshape(-1)[i].item<std::int64_t>();
      if (std::string(table) == "items.weight" && id == 2) continue;  // padding
      const bool is = clicked[i * clicked.numel() / ids.numel()].item<double>() != 0;
      ++(is ? counts[id].first : counts[id].second);
    }
  };
  for (const std::int64_t number : {0, 50, 1, 51}) {
    const Batch batch = batch_of(number, 0, 14);
    const auto of = [&](const char* name) { count(batch[name].tensor(), batch["clicked"].tensor()); };
    if (std::string(table) == "users.weight") {
      of("user");
    } else {
      of("seen");
      of("wanted");
    }
  }
  return counts;
}

TEST_CASE("a table counts its rows' shows and clicks, each once, however ranks cut the step") {
  TableOptions options = kBoth;
  for (TablePlacement& placement : options.placements) {
    placement.scored = true;
    placement.initial = ps::Initial{.scale = 0.1f};  // or there are rows that nobody has shown
    placement.clicks = "clicked";
  }
  options.placements[0].life = {.show_weight = 0, .click_weight = 1, .min_score = 1.5};
  options.placements[1].life = {.show_weight = 1, .click_weight = 0, .min_score = 1.5};
  std::int64_t clicked = 0, passed = 0;
  for (const auto& [id, counts] : counted("items.weight")) clicked += counts.first >= 2 ? 1 : 0;
  for (const auto& [id, counts] : counted("users.weight")) passed += counts.second >= 2 ? 1 : 0;
  for (const auto& mesh :
       {mesh_of(1, 1, 1, 1), mesh_of(2, 2, 1, 1), mesh_of(2, 1, 2, 1), mesh_of(2, 1, 1, 2)}) {
    const int ranks = mesh.size();
    CAPTURE(sharding::to_text(mesh));
    const rendezvous::Key key = rendezvous::make_key();
    const ps::Server server(key, {.loops = 2, .all_loops = 2});
    comm::run_as_threads(comm::inproc(ranks), [&](comm::Communicator& world) {
      at::set_num_threads(1);
      ps::Client client(key, server.endpoints());
      const Parallelism parallelism{.mesh = mesh, .world = &world};
      const sharding::Range part = samples_of(mesh, world.rank(), 14);
      TableOptions own = options;
      own.tables = &client;
      Trainer trainer(model_of(), loss_of, Adagrad{.lr = 0.1}, {.parallelism = parallelism, .tables = own});
      step(trainer, 0, part, true);
      for (const std::int64_t number : {1, 51}) trainer.step(batch_of(number, part.begin, part.end));
      const auto ended = trainer.end_day(1);
      if (world.rank() != 0) return;
      const auto left = [&](const char* table) { return ended.at(table).rows - ended.at(table).low_score; };
      CHECK(left("items.weight") == clicked);
      CHECK(left("users.weight") == passed);
    });
  }
}

}  // namespace tables_test
