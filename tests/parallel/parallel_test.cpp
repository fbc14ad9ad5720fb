// SPDX-License-Identifier: Apache-2.0
// Split, run, merge gives what one device gives: every model under every strategy, on 2, 3, 4, 6 and 8 ranks.
// Sizes do not divide by most of these, and some ranks have no sample at all.
//
//   build/dev/parallel_test -ns -tc="the whole matrix*"      all cells; goes on where it was stopped
#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <set>
#include <string>

#include "shoal/base/error.h"
#include "tests/parallel/matrix.h"

using namespace shoal;

static constexpr int kRanks[] = {2, 3, 4, 6, 8};

static std::string name_of(const cases::ModelCase& model, const matrix::Strategy& strategy) {
  return concat(model.name, ", ", strategy.name, ", ", strategy.replicate, " x ", strategy.shard, " x ",
                strategy.tensor);
}

static void check(const cases::ModelCase& model, const matrix::Strategy& strategy,
                  const matrix::Outcome& outcome) {
  CAPTURE(name_of(model, strategy));
  CAPTURE(outcome.worst.worst);
  CHECK(outcome.error == "");
  CHECK(outcome.worst.largest <= 1);
}

// Every model with every strategy, every strategy with every number of ranks, in turns.
TEST_CASE("a cover of the matrix trains as one device does") {
  std::size_t turn = 0;
  for (const auto& model : cases::kModels) {
    std::set<std::string> done;
    for (std::size_t i = 0; i < std::size(kRanks); ++i) {
      const int ranks = kRanks[(turn + i) % std::size(kRanks)];
      std::size_t next = turn;
      for (const auto& strategy : matrix::strategies(model, ranks)) {
        // Where there is a choice of ranks, each strategy takes another one.
        const bool is_its_turn = next++ % 2 == i % 2 || i + 1 == std::size(kRanks);
        if (!is_its_turn || !done.insert(strategy.name).second) continue;
        check(model, strategy, matrix::run(model, strategy));
      }
    }
    ++turn;
  }
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
  for (const Optimizer& optimizer : all)
    for (const int stage : {1, 3}) {
      const matrix::Strategy strategy{
          .name = concat("optimizer ", optimizer.index()), .shard = 3, .zero_stage = stage};
      check(mlp, strategy, matrix::run(mlp, strategy, optimizer));
    }
}

TEST_CASE("the whole matrix trains as one device does" * doctest::skip()) {
  const std::string path = "outputs/matrix.txt";  // a line for each cell that was right
  std::set<std::string> done;
  std::ifstream before(path);
  for (std::string line; std::getline(before, line);) done.insert(line.substr(0, line.find(':')));
  std::ofstream results(path, std::ios::app);
  REQUIRE(results.good());
  for (const auto& model : cases::kModels)
    for (const int ranks : kRanks)
      for (const auto& strategy : matrix::strategies(model, ranks)) {
        const std::string name = name_of(model, strategy);
        if (done.contains(name)) continue;
        const auto outcome = matrix::run(model, strategy);
        check(model, strategy, outcome);
        if (outcome.is_same()) results << name << ": " << outcome.worst.error << std::endl;
      }
}
