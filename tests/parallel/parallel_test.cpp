// SPDX-License-Identifier: Apache-2.0
// Split, run, merge gives what one device gives: every model under every strategy, on 2, 3, 4, 6 and 8 ranks.
// Sizes do not divide by most of these, and some ranks have no sample at all.
//
//   build/dev/parallel_test -ns -tc="the whole matrix trains*"      all cells; goes on where it was stopped
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/sanitized.h"
#include "tests/parallel/cover.h"
#include "tests/parallel/matrix.h"

namespace parallel_test {

using namespace shoal;

static constexpr int kRanks[] = {2, 3, 4, 6, 8};
static constexpr int kMicrobatches[] = {1, 3};

static std::string name_of(const cases::ModelCase& model, const matrix::Strategy& strategy) {
  return concat(model.name, ", ", strategy.name, ", ", strategy.replicate, " x ", strategy.shard, " x ",
                strategy.tensor, " by ", strategy.microbatches);
}

static void check(const cases::ModelCase& model, const matrix::Strategy& strategy,
                  const matrix::Outcome& outcome) {
  CAPTURE(name_of(model, strategy));
  CAPTURE(outcome.worst.worst);
  CHECK(outcome.error == "");
  CHECK(outcome.unsaid == "");
  CHECK(outcome.unplayed == "");
  CHECK(outcome.messages > 0);
  CHECK(outcome.worst.largest <= 1);
}

static std::vector<matrix::Cell> cells() {
  std::vector<matrix::Cell> all;
  for (const auto& model : cases::kModels)
    for (const int ranks : kRanks)
      for (auto strategy : matrix::strategies(model, ranks))
        for (const int microbatches : kMicrobatches) {
          strategy.microbatches = microbatches;
          all.push_back({&model,
                         strategy,
                         {model.name, strategy.name, concat("on ", ranks), concat("by ", microbatches)}});
        }
  return matrix::cover(all);
}

TEST_CASE("the cover has every strategy on every number of ranks, and with every model that it is for" *
          doctest::skip(kIsSanitized)) {
  const std::vector<int> all(std::begin(kRanks), std::end(kRanks)), composite = {4, 6, 8};
  const std::map<std::string, std::vector<int>> wanted = {{"data parallel", all},
                                                          {"ZeRO-1", all},
                                                          {"ZeRO-2", all},
                                                          {"ZeRO-3", all},
                                                          {"tensor", all},
                                                          {"tensor and sequence", all},
                                                          {"hybrid", composite},
                                                          {"hybrid, ZeRO-1", composite},
                                                          {"data x tensor", composite},
                                                          {"ZeRO-3 x tensor", composite},
                                                          {"ZeRO-3 x sequence", composite},
                                                          {"hybrid x sequence", {8}},
                                                          {"found", all},
                                                          {"data x found", composite},
                                                          {"ZeRO-3 x found", composite}};
  std::set<std::string> covered;
  const auto chosen = cells();
  for (const auto& cell : chosen)
    for (const auto& pair : matrix::pairs_of(cell)) covered.insert(pair);
  for (const auto& [strategy, numbers] : wanted) {
    for (const int ranks : numbers)
      CHECK_MESSAGE(covered.contains(concat(strategy, ", on ", ranks)), strategy, ranks);
    const bool needs_plan =
        strategy.find("tensor") != std::string::npos || strategy.find("sequence") != std::string::npos;
    for (const auto& model : cases::kModels) {
      const std::string name = model.name;
      if (!needs_plan || name == "gpt2" || name == "llama")
        CHECK_MESSAGE(covered.contains(concat(name, ", ", strategy)), name, strategy);
    }
  }
  for (const auto& model : cases::kModels)
    for (const int ranks : kRanks)
      CHECK_MESSAGE(covered.contains(concat(model.name, ", on ", ranks)), model.name, ranks);
  for (const int microbatches : kMicrobatches) {
    for (const auto& [strategy, numbers] : wanted)
      CHECK_MESSAGE(covered.contains(concat(strategy, ", by ", microbatches)), strategy, microbatches);
    for (const auto& model : cases::kModels)
      CHECK_MESSAGE(covered.contains(concat(model.name, ", by ", microbatches)), model.name, microbatches);
    for (const int ranks : kRanks)
      CHECK_MESSAGE(covered.contains(concat("on ", ranks, ", by ", microbatches)), ranks, microbatches);
  }
  MESSAGE(chosen.size(), " cells");
}

TEST_CASE(
    "a cover of the matrix trains as one device does, sends what its programs say, and starts as played") {
  for (const auto& [model, strategy, settings] : cells())
    check(*model, strategy, matrix::run(*model, strategy));
}

TEST_CASE("data parallel, ZeRO-2 and ZeRO-3 train every model as eager LibTorch does" *
          doctest::skip(kIsSanitized)) {  // which sees all of this in the cover
  for (const auto& model : cases::kModels)
    for (const auto& strategy : matrix::strategies(model, 3))
      if (strategy.tensor == 1 && strategy.zero_stage != 1)
        check(model, strategy, matrix::run_against_eager(model, strategy));
}

TEST_CASE("every optimizer trains in parts as it does whole") {
  const auto& mlp = *std::ranges::find_if(cases::kModels,
                                          [](const auto& model) { return model.name == std::string("mlp"); });
  const Optimizer all[] = {SGD{.lr = 0.05, .momentum = 0.9},
                           Adam{.lr = 0.01},
                           Adagrad{.lr = 0.01},
                           RMSprop{.lr = 0.01},
                           AdamW{.lr = 0.01, .amsgrad = true, .maximize = true},
                           Adadelta{},
                           Adamax{.lr = 0.01},
                           RAdam{.lr = 0.01},
                           Rprop{.lr = 0.001},
                           Lion{.lr = 0.001},
                           LAMB{.lr = 0.01},
                           SGD{.lr = 0.05, .momentum = 0.9, .dampening = 0.5},
                           Adagrad{.lr = 0.01, .lr_decay = 0.5},
                           NAdam{.lr = 0.01},
                           ASGD{.lr = 0.05, .lambd = 0.1, .t0 = 1},
                           Adafactor{.lr = 0.01}};
  std::set<std::size_t> kinds;
  for (const Optimizer& optimizer : all) kinds.insert(optimizer.index());
  CHECK(kinds.size() == std::variant_size_v<Optimizer> - 1);  // Muon is for matrices alone
  for (const Optimizer& optimizer : all)
    for (matrix::Strategy strategy :
         {matrix::Strategy{.shard = 3, .zero_stage = 1}, matrix::Strategy{.shard = 3, .zero_stage = 3},
          matrix::Strategy{.microbatches = 3, .pipeline = 3},
          matrix::Strategy{.shard = 2, .zero_stage = 3, .microbatches = 3, .pipeline = 2}}) {
      if (kIsSanitized && (strategy.shard != 2 || strategy.pipeline != 2)) continue;
      strategy.name = concat("optimizer ", optimizer.index(), ", ", strategy.pipeline, " stages");
      check(mlp, strategy, matrix::run(mlp, strategy, optimizer));
    }
}

TEST_CASE("the whole matrix trains as one device does" * doctest::skip()) {
  matrix::Finished finished("outputs/matrix.txt");
  for (const auto& model : cases::kModels)
    for (const int ranks : kRanks)
      for (const auto& strategy : matrix::strategies(model, ranks)) {
        const std::string name = name_of(model, strategy);
        if (finished.has(name)) continue;
        const auto outcome = matrix::run(model, strategy);
        check(model, strategy, outcome);
        if (outcome.is_same()) finished.add(name, outcome.worst.error);
      }
  finished.print();
}

}  // namespace parallel_test
