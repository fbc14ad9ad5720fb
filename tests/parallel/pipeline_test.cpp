// SPDX-License-Identifier: Apache-2.0
// A model cut into stages trains as one device does: every model, on two to four stages, by every schedule that
// the trainer runs, alone and with the other ways to train on many ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "tests/parallel/matrix.h"

using namespace shoal;

static constexpr std::array<const char*, 3> kSchedules = {"gpipe", "1f1b", "eager_1f1b"};
static constexpr std::array<int, 4> kMicrobatches = {1, 2, 5, 8};

namespace {

struct Cell {
  const cases::ModelCase* model;
  matrix::Strategy strategy;

  // What has to meet somewhere in the cover.
  std::vector<std::string> pairs() const {
    const std::array<std::string, 5> settings = {model->name, strategy.name,
                                                 concat(strategy.pipeline, " stages"), strategy.schedule,
                                                 concat("by ", strategy.microbatches)};
    std::vector<std::string> found;
    for (std::size_t i = 0; i < settings.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) found.push_back(concat(settings[j], ", ", settings[i]));
    return found;
  }
};

}  // namespace

static std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  for (const auto& model : cases::kModels) {
    const std::string name = model.name;
    std::vector<matrix::Strategy> strategies = {{.name = "alone"},
                                                {.name = "data", .replicate = 2},
                                                {.name = "ZeRO-1", .shard = 2, .zero_stage = 1},
                                                {.name = "ZeRO-2", .shard = 2, .zero_stage = 2},
                                                {.name = "ZeRO-3", .shard = 2, .zero_stage = 3}};
    if (name == "gpt2" || name == "llama") {
      strategies.push_back({.name = "tensor", .tensor = 2, .plan = name + "_tensor"});
      strategies.push_back({.name = "ZeRO-3 x tensor", .shard = 2, .tensor = 2, .plan = name + "_tensor"});
    }
    for (auto strategy : strategies)
      for (const int stages : {2, 3, 4})
        for (const char* schedule : kSchedules)
          for (const int microbatches : kMicrobatches) {
            // One batch of three samples, which the trainer cuts, is enough for two stages that share it.
            if (microbatches == 1 && (stages > 2 || strategy.name != "alone")) continue;
            strategy.pipeline = stages;
            strategy.schedule = schedule;
            strategy.microbatches = microbatches;
            cells.push_back({&model, strategy});
          }
  }
  return cells;
}

// Cells in which all pairs meet: always the one that brings most that are new, of these the one of fewest ranks.
static std::vector<Cell> cover() {
  const auto all = all_cells();
  std::set<std::string> missing;
  for (const Cell& cell : all) {
    const auto pairs = cell.pairs();
    missing.insert(pairs.begin(), pairs.end());
  }
  std::vector<Cell> chosen;
  while (!missing.empty()) {
    const auto worth = [&](const Cell& cell) {
      const auto pairs = cell.pairs();
      return std::pair(std::ranges::count_if(pairs, [&](const auto& pair) { return missing.contains(pair); }),
                       -cell.strategy.ranks());
    };
    chosen.push_back(*std::ranges::max_element(all, {}, worth));
    for (const auto& pair : chosen.back().pairs()) missing.erase(pair);
  }
  return chosen;
}

static void check(const Cell& cell) {
  const auto& [model, strategy] = cell;
  const std::string name = concat(model->name, ", ", strategy.name, ", ", strategy.schedule, ", ",
                                  strategy.pipeline, " stages by ", strategy.microbatches);
  CAPTURE(name);
  const auto outcome = matrix::run(*model, strategy);
  CAPTURE(outcome.worst.worst);
  CHECK(outcome.error == "");
  CHECK(outcome.unsaid == "");
  CHECK(outcome.messages > 0);
  CHECK(outcome.worst.largest <= 1);
}

TEST_CASE("the cover of pipelines has every pair of model, strategy, stages, schedule and micro-batches") {
  const auto cells = cover();
  std::set<std::string> covered;
  for (const Cell& cell : cells)
    for (const auto& pair : cell.pairs()) covered.insert(pair);
  for (const auto& model : cases::kModels) {
    for (const char* strategy : {"alone", "data", "ZeRO-1", "ZeRO-2", "ZeRO-3"})
      CHECK(covered.contains(concat(model.name, ", ", strategy)));
    for (const char* schedule : kSchedules) CHECK(covered.contains(concat(model.name, ", ", schedule)));
    for (const int stages : {2, 3, 4}) CHECK(covered.contains(concat(model.name, ", ", stages, " stages")));
    for (const int microbatches : kMicrobatches)
      CHECK(covered.contains(concat(model.name, ", by ", microbatches)));
  }
  MESSAGE(cells.size(), " cells");
}

TEST_CASE("a cover of pipelines trains as one device does, and sends what its programs say") {
  for (const Cell& cell : cover()) check(cell);
}

TEST_CASE("four axes at once: pipeline, data, ZeRO-3 and tensor on 16 ranks") {
  for (const auto& model : cases::kModels)
    if (const std::string name = model.name; name == "gpt2" || name == "llama")
      check({&model,
             {.name = "4D",
              .replicate = 2,
              .shard = 2,
              .tensor = 2,
              .plan = name + "_tensor",
              .microbatches = 2,
              .pipeline = 2}});
}
