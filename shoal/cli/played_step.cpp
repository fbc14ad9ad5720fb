// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/played_step.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/compile.h"
#include "shoal/ir/flops.h"
#include "shoal/schedule/schedule.h"
#include "shoal/simulate/programs.h"

namespace shoal::cli {

std::int64_t PlayedStep::nanoseconds() const {
  return std::ranges::max_element(spans, {}, &simulate::Span::end)->end;
}

// As a communicator would be, whose messages go on beside what computes.
static bool overlaps(const cost::Cluster& cluster, int ranks) {
  return cluster.host_of(ranks - 1) > 0 ? cluster.between.overlaps : cluster.inside.overlaps;
}

static PlayedStep programs_of(const Recipe& recipe, const cost::Cluster& cluster, int ranks) {
  const Parallelism parallelism = parallelism_of(recipe, ranks, ranks > 1 && overlaps(cluster, ranks));
  const StepSizes sizes = sizes_of(recipe, parallelism);
  const torch::nn::AnyModule model = hollow_model(recipe);
  auto [graph, captured] = captured_step(recipe, model, sizes.microbatch);
  const OptimizerPart part{{}, optimizer_of(recipe)};
  compile::Settings settings = settings_of(recipe, part, "");
  settings.plan_name = parallelism.plan_name;
  settings.verifies = false;
  const bool is_staged = compile::num_stages_of(parallelism.plan, parallelism.mesh) > 1;
  if (sizes.num_microbatches > 1 || is_staged) settings.then = compile::Then::Accumulate;
  const compile::Whole whole =
      compile::compile_whole(std::move(graph), parallelism.plan, parallelism.mesh, settings);
  std::optional<compile::Whole> sums;
  if (settings.then == compile::Then::Accumulate) sums = update_of_sums(whole);
  PlayedStep step = {.mesh = whole.mesh, .plan = whole.plan, .sizes = sizes};
  for (const ir::Node& node : whole.graph.nodes)
    step.flops += ir::flops_of(whole.graph, node) * static_cast<double>(sizes.num_microbatches);
  for (auto& [members] : kinds_of_ranks(whole)) {
    PlayedKind kind = {.ranks = std::move(members)};
    const int first = kind.ranks.front();
    const int threads = threads_of_rank(std::min(ranks, cluster.devices_beside(first)));
    kind.forecast = forecast_of(recipe, whole, captured, first, threads, sums ? &*sums : nullptr);
    if (sums) kind.update = compile::compile_local(*sums, first).program;
    step.kinds.push_back(std::move(kind));
  }
  return step;
}

// In the order of a trainer.
static std::vector<simulate::Run> runs_of(const PlayedStep& step, const PlayedKind& kind) {
  const auto& [mesh, plan] = std::tie(step.mesh, step.plan);
  const auto microbatches = static_cast<int>(step.sizes.num_microbatches);
  const program::Program& program = kind.forecast.program;
  std::vector<simulate::Run> runs;
  if (const int ranks = compile::pipeline_ranks_of(plan, mesh); ranks > 1) {
    const int rank = mesh.coordinate(kind.ranks.front(), mesh.axis(plan.pipeline_axis));
    const schedule::Timeline timeline = compile::timeline_of(plan, ranks, microbatches);
    runs = program::runs_of(timeline, rank, std::vector(static_cast<std::size_t>(microbatches), &program));
  } else {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch)
      simulate::append_runs(runs, program, microbatch);
  }
  if (kind.update) simulate::append_runs(runs, *kind.update, 0);
  return runs;
}

PlayedStep play_step(const Recipe& recipe, const cost::Cluster& cluster, int ranks) {
  SHOAL_CHECK(recipe.tables.empty(), InvalidInput,
              "simulate: the recipe has [[tables]], and what servers take is not priced");
  PlayedStep step = programs_of(recipe, cluster, ranks);
  std::vector<simulate::Ranks> kinds;
  for (const PlayedKind& kind : step.kinds)
    kinds.push_back({kind.ranks, runs_of(step, kind), kind.forecast.beside});
  step.tasks = simulate::tasks_of(kinds, step.mesh, cluster);
  step.spans = simulate::play(step.tasks);
  return step;
}

}  // namespace shoal::cli
