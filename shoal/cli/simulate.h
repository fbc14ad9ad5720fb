// SPDX-License-Identifier: Apache-2.0
// shoal simulate: what a recipe's step comes to on a cluster, or a pipeline schedule alone.
#pragma once

#include <string>
#include <vector>

#include "shoal/cli/recipe.h"

namespace shoal::cli {

// As on the command line.
struct Simulate {
  std::string schedule;     // "": not said, 1f1b
  std::string csv;          // file to read instead; "": none
  int stages = 0;           // 0: not said
  int stages_per_rank = 0;  // likewise
  int microbatches = 0;     // likewise
  std::string times = "1,1,1,0";
  std::string save, timeline;  // files to write; "": none
  // Of a recipe's step; "": the schedule alone.
  std::string recipe;
  std::vector<std::string> overrides;
  std::string cluster;  // file
  std::string plan;     // parallelism.plan
  int ranks = 0;        // 0: not said
};

// Throws InvalidInput, with what is valid, where the options are not.
void check(const Simulate& options);
// Of checked options.
int simulate(const Simulate& options);
// Of a recipe's step: throws InvalidInput likewise.
void check_step(const Simulate& options);
int simulate_step(const Recipe& recipe, const Simulate& options);

}  // namespace shoal::cli
