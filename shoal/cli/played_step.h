// SPDX-License-Identifier: Apache-2.0
// A recipe's step on a cluster: the programs of all ranks, made as a trainer makes them, and played.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shoal/cli/forecast.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/recipe.h"
#include "shoal/compile/plan.h"
#include "shoal/cost/cluster.h"
#include "shoal/program/program.h"
#include "shoal/sharding/mesh.h"
#include "shoal/simulate/play.h"

namespace shoal::cli {

// What ranks of one kind run: programs that others borrow.
struct PlayedKind {
  std::vector<int> ranks;
  Forecast forecast;
  std::optional<program::Program> update;  // of the sums of several micro-batches
};

struct PlayedStep {
  sharding::Mesh mesh;
  compile::Plan plan;
  double flops = 0;  // of all ranks and micro-batches
  StepSizes sizes;
  std::vector<PlayedKind> kinds;
  simulate::Tasks tasks;
  std::vector<simulate::Span> spans;  // by task

  std::int64_t nanoseconds() const;  // from the first start to the last end
};

// Throws InvalidInput for [[tables]], which are not priced, and where the cluster has fewer devices than ranks.
PlayedStep play_step(const Recipe& recipe, const cost::Cluster& cluster, int ranks);

}  // namespace shoal::cli
