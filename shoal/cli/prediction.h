// SPDX-License-Identifier: Apache-2.0
// profiling.cluster: what the simulator says of a step, held against the steps that are trained.
#pragma once

#include <filesystem>
#include <string>

#include "shoal/cli/recipe.h"
#include "shoal/observe/trace.h"
#include "shoal/simulate/comparison.h"

namespace shoal::cli {

class Prediction {
 public:
  // Plays the recipe's step. Throws InvalidInput with the file where it is no cluster, or one of fewer devices.
  Prediction(const Recipe& recipe, int ranks, std::filesystem::path folder);

  // After each step of the first rank. After kComparedSteps says how it compares and writes simulated.json; from then
  // on the trace takes no more unless `keeps_on`.
  void look(observe::Trace& trace, bool keeps_on);

 private:
  std::string cluster_;  // file
  int hosts_;
  observe::Trace simulated_;
  std::filesystem::path folder_;
  int steps_ = 0;
};

// What simulated.json has.
struct Simulated {
  std::string cluster;  // the file that was played
  int hosts = 1;
  simulate::Comparison comparison;
};
// Throws InvalidInput with the file where it is none that a Prediction has written.
Simulated read_simulated(const std::string& file);

}  // namespace shoal::cli
