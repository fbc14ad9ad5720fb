// SPDX-License-Identifier: Apache-2.0
// A model cut into stages trains as one device does: every model, on two to four stages, by every schedule
// there is, alone and with the other ways to train on many ranks.
//
//   build/dev/parallel_test -ns -tc="the whole matrix of pipelines*"     goes on where it was stopped
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/sanitized.h"
#include "shoal/schedule/schedule.h"
#include "tests/parallel/cover.h"
#include "tests/parallel/matrix.h"

namespace pipeline_test {

using namespace shoal;

static constexpr std::array<int, 4> kMicrobatches = {1, 2, 5, 8};

// "by 1" is a batch that stays whole; "cut", one that the trainer cuts.
static std::vector<matrix::Cell> all_cells() {
  std::vector<matrix::Cell> all;
  for (const auto& model : cases::kModels) {
    const std::string name = model.name;
    std::vector<matrix::Strategy> strategies = {{.name = "alone"},
                                                {.name = "data", .replicate = 2},
                                                {.name = "ZeRO-1", .shard = 2, .zero_stage = 1},
                                                {.name = "ZeRO-2", .shard = 2, .zero_stage = 2},
                                                {.name = "ZeRO-3", .shard = 2, .zero_stage = 3},
                                                {.name = "found", .tensor = 2},
                                                {.name = "found x data", .replicate = 2, .tensor = 2}};
    if (name == "gpt2" || name == "llama") {
      strategies.push_back({.name = "tensor", .tensor = 2, .plan = name + "_tensor"});
      strategies.push_back({.name = "ZeRO-3 x tensor", .shard = 2, .tensor = 2, .plan = name + "_tensor"});
    }
    for (auto strategy : strategies)
      for (const int stages : {2, 3, 4})
        for (const auto& schedule : schedule::all()) {
          strategy.pipeline = stages;
          strategy.schedule = schedule.name;
          const auto add = [&](int microbatches, int cut, std::string how) {
            strategy.microbatches = microbatches;
            strategy.cut = cut;
            all.push_back(
                {&model, strategy, {name, strategy.name, concat(stages, " stages"), strategy.schedule, how}});
          };
          for (const int microbatches : kMicrobatches)
            add(microbatches, microbatches == 1 ? 1 : 0, concat("by ", microbatches));
          // Three samples are enough for two stages that share them.
          if (stages == 2 && schedule.stages_per_rank == 1 && strategy.name == "alone") add(1, 0, "cut");
        }
  }
  return all;
}

static const cases::ModelCase& model_named(std::string_view name) {
  return *std::ranges::find(cases::kModels, name, &cases::ModelCase::name);
}

static std::vector<matrix::Cell> cells() { return matrix::cover(all_cells()); }

static std::string name_of(const matrix::Cell& cell) {
  std::string name;
  for (const auto& setting : cell.settings) name += (name.empty() ? "" : ", ") + setting;
  return name;
}

static matrix::Outcome check(const matrix::Cell& cell) {
  CAPTURE(name_of(cell));
  const auto outcome = matrix::run(*cell.model, cell.strategy);
  CAPTURE(outcome.worst.worst);
  CHECK(outcome.error == "");
  CHECK(outcome.unsaid == "");
  CHECK(outcome.unplayed == "");
  CHECK(outcome.messages > 0);
  CHECK(outcome.worst.largest <= 1);
  return outcome;
}

TEST_CASE("the cover of pipelines has every pair of model, strategy, stages, schedule and micro-batches" *
          doctest::skip(kIsSanitized)) {
  const auto chosen = cells();
  std::set<std::string> covered, missing;
  for (const auto& cell : chosen)
    for (const auto& pair : matrix::pairs_of(cell)) covered.insert(pair);
  for (const auto& cell : all_cells())
    for (const auto& pair : matrix::pairs_of(cell))
      if (!covered.contains(pair)) missing.insert(pair);
  CHECK(missing.empty());
  for (const auto& model : cases::kModels) {
    for (const char* strategy : {"alone", "data", "ZeRO-1", "ZeRO-2", "ZeRO-3", "found", "found x data"})
      CHECK(covered.contains(concat(model.name, ", ", strategy)));
    for (const auto& schedule : schedule::all())
      CHECK(covered.contains(concat(model.name, ", ", schedule.name)));
    for (const int stages : {2, 3, 4}) CHECK(covered.contains(concat(model.name, ", ", stages, " stages")));
    for (const int microbatches : kMicrobatches)
      CHECK(covered.contains(concat(model.name, ", by ", microbatches)));
  }
  MESSAGE(chosen.size(), " cells");
}

TEST_CASE("a cover of pipelines trains as one device does, and sends what its programs say") {
  for (const auto& cell : cells()) check(cell);
}

TEST_CASE("the whole matrix of pipelines trains as one device does" * doctest::skip()) {
  matrix::Finished finished("outputs/pipelines.txt");
  for (const auto& cell : all_cells()) {
    if (finished.has(name_of(cell))) continue;
    const auto outcome = check(cell);
    if (outcome.is_same()) finished.add(name_of(cell), outcome.worst.error);
  }
  finished.print();
}

// A gradient of Llama's is summed up over the tensor axis for stages 3 and 4, whose nodes stand in the other order than
// backward runs them.
TEST_CASE("what two stages read alike is brought there by the one that runs first" *
          doctest::skip(kIsSanitized)) {
  check({&model_named("llama"),
         {.name = "found x data",
          .replicate = 2,
          .tensor = 2,
          .cut = 1,
          .pipeline = 4,
          .schedule = "looped_bfs"},
         {"llama", "looped_bfs"}});
}

TEST_CASE("a rank has three stages, and four" * doctest::skip(kIsSanitized)) {
  for (const char* model : {"gpt2", "resnet"})
    for (const char* schedule : {"looped_bfs", "interleaved_1f1b"})
      for (const int stages : {1, 3, 4})
        check({&model_named(model),
               {.name = "ZeRO-3",
                .shard = 2,
                .zero_stage = 3,
                .microbatches = 4,
                .pipeline = 2,
                .schedule = schedule,
                .stages_per_rank = stages},
               {model, schedule, concat(stages, " stages a rank")}});
}

TEST_CASE("four axes at once: pipeline, data, ZeRO-3 and tensor on 16 ranks") {
  for (const auto& model : cases::kModels) {
    const std::string name = model.name;
    if (name != "gpt2" && (name != "llama" || kIsSanitized)) continue;
    check({&model,
           {.name = "4D",
            .replicate = 2,
            .shard = 2,
            .tensor = 2,
            .plan = name + "_tensor",
            .microbatches = 2,
            .pipeline = 2},
           {name, "4D"}});
  }
}

}  // namespace pipeline_test
