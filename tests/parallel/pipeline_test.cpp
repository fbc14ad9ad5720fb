// SPDX-License-Identifier: Apache-2.0
// A model cut into stages trains as one device does: every model, on two to four stages, by every schedule that
// the trainer runs, alone and with the other ways to train on many ranks.
#include <doctest/doctest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/schedule/schedule.h"
#include "tests/parallel/cover.h"
#include "tests/parallel/matrix.h"

namespace pipeline_test {

using namespace shoal;

static constexpr std::array<int, 4> kMicrobatches = {1, 2, 5, 8};

static std::vector<matrix::Cell> cells() {
  std::vector<matrix::Cell> all;
  for (const auto& model : cases::kModels) {
    const std::string name = model.name;
    std::vector<matrix::Strategy> strategies = {{.name = "alone"},
                                                {.name = "data", .replicate = 2},
                                                {.name = "ZeRO-1", .shard = 2, .zero_stage = 1},
                                                {.name = "ZeRO-2", .shard = 2, .zero_stage = 2},
                                                {.name = "ZeRO-3", .shard = 2, .zero_stage = 3},
                                                {.name = "found", .tensor = 2}};
    if (name == "gpt2" || name == "llama") {
      strategies.push_back({.name = "tensor", .tensor = 2, .plan = name + "_tensor"});
      strategies.push_back({.name = "ZeRO-3 x tensor", .shard = 2, .tensor = 2, .plan = name + "_tensor"});
    }
    for (auto strategy : strategies)
      for (const int stages : {2, 3, 4})
        for (const auto& schedule : schedule::all())
          for (const int microbatches : kMicrobatches) {
            // One batch of three samples, which the trainer cuts, is enough for two stages that share it.
            const bool has_more = schedule.stages_per_rank > 1;
            if (microbatches == 1 && (stages > 2 || has_more || strategy.name != "alone")) continue;
            strategy.pipeline = stages;
            strategy.schedule = schedule.name;
            strategy.microbatches = microbatches;
            all.push_back({&model,
                           strategy,
                           {name, strategy.name, concat(stages, " stages"), strategy.schedule,
                            concat("by ", microbatches)}});
          }
  }
  return matrix::cover(all);
}

static void check(const cases::ModelCase& model, const matrix::Strategy& strategy) {
  const std::string name = concat(model.name, ", ", strategy.name, ", ", strategy.schedule, ", ",
                                  strategy.pipeline, " stages by ", strategy.microbatches);
  CAPTURE(name);
  const auto outcome = matrix::run(model, strategy);
  CAPTURE(outcome.worst.worst);
  CHECK(outcome.error == "");
  CHECK(outcome.unsaid == "");
  CHECK(outcome.unplayed == "");
  CHECK(outcome.messages > 0);
  CHECK(outcome.worst.largest <= 1);
}

TEST_CASE("the cover of pipelines has every pair of model, strategy, stages, schedule and micro-batches" *
          doctest::skip(matrix::is_sanitized())) {
  const auto chosen = cells();
  std::set<std::string> covered;
  for (const auto& cell : chosen)
    for (const auto& pair : matrix::pairs_of(cell)) covered.insert(pair);
  for (const auto& model : cases::kModels) {
    for (const char* strategy : {"alone", "data", "ZeRO-1", "ZeRO-2", "ZeRO-3", "found"})
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
  for (const auto& [model, strategy, settings] : cells()) check(*model, strategy);
}

TEST_CASE("four axes at once: pipeline, data, ZeRO-3 and tensor on 16 ranks") {
  for (const auto& model : cases::kModels)
    if (const std::string name = model.name; name == "gpt2" || (name == "llama" && !matrix::is_sanitized()))
      check(model, {.name = "4D",
                    .replicate = 2,
                    .shard = 2,
                    .tensor = 2,
                    .plan = name + "_tensor",
                    .microbatches = 2,
                    .pipeline = 2});
}

}  // namespace pipeline_test
