// SPDX-License-Identifier: Apache-2.0
// profiling.cluster: what the simulator says of a step, held against the steps that are trained.
#pragma once

#include <filesystem>
#include <string>

#include "shoal/cli/recipe.h"
#include "shoal/cost/cluster.h"
#include "shoal/observe/trace.h"
#include "shoal/simulate/comparison.h"

namespace shoal::cli {

// Throws with the file where it is no cluster.
cost::Cluster cluster_of(const Recipe& recipe);

class Prediction {
 public:
  // Plays the recipe's step. Throws InvalidInput where its cluster has fewer devices.
  Prediction(const Recipe& recipe, int ranks, std::filesystem::path folder);

  // After each step of the first rank. After kComparedSteps says how it compares and writes simulated.json.
  void look(const observe::Trace& trace);
  const observe::Trace& simulated() const { return simulated_; }

 private:
  cost::Cluster cluster_;
  int hosts_;
  observe::Trace simulated_;
  std::filesystem::path folder_;
  int steps_ = 0;
};

// What simulated.json has.
struct Simulated {
  cost::Cluster cluster;  // that was played: its file may be another by now
  int hosts = 1;
  simulate::Comparison comparison;
};
// Throws InvalidInput with the file where it is none that a Prediction has written.
Simulated read_simulated(const std::string& file);

}  // namespace shoal::cli
