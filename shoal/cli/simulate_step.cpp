// SPDX-License-Identifier: Apache-2.0
// shoal simulate RECIPE: the programs of all ranks, made as a trainer makes them and played on a cluster.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/cli/forecast.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/machine.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/simulate.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/compile.h"
#include "shoal/cost/cluster.h"
#include "shoal/cost/price.h"
#include "shoal/ir/flops.h"
#include "shoal/observe/summary.h"
#include "shoal/observe/timeline.h"
#include "shoal/schedule/schedule.h"
#include "shoal/simulate/measures.h"
#include "shoal/simulate/programs.h"
#include "shoal/train/pipeline.h"

namespace shoal::cli {

void check_step(const Simulate& options) {
  SHOAL_CHECK(!options.cluster.empty(), InvalidInput,
              "simulate: --cluster says on which machines. Remedy: a file of clusters/, or one that `shoal "
              "calibrate` has written");
  SHOAL_CHECK(options.ranks > 0, InvalidInput,
              "simulate: --ranks says how many devices of the cluster train");
  SHOAL_CHECK(
      options.schedule.empty() && options.csv.empty() && options.save.empty() && options.stages == 0 &&
          options.stages_per_rank == 0 && options.microbatches == 0,
      InvalidInput,
      "simulate: --schedule, --csv, --save, --stages, --stages-per-rank and --microbatches are of a schedule "
      "alone; of a recipe --parallelism.pipeline_parallel_schedule and others say it");
}

namespace {

// What ranks of one kind run: programs that others borrow.
struct Kind {
  std::vector<int> ranks;
  Forecast forecast;
  std::optional<program::Program> update;  // of the sums of several micro-batches
};

struct Step {
  sharding::Mesh mesh;
  compile::Plan plan;
  double flops = 0;  // of all ranks and micro-batches
  StepSizes sizes;
  std::vector<Kind> kinds;
};

}  // namespace

// As a communicator would be, whose messages go on beside what computes.
static bool overlaps(const cost::Cluster& cluster, int ranks) {
  return cluster.host_of(ranks - 1) > 0 ? cluster.between.overlaps : cluster.inside.overlaps;
}

static Step step_of(const Recipe& recipe, const cost::Cluster& cluster, int ranks) {
  Parallelism parallelism = parallelism_of(recipe, ranks);
  if (ranks > 1 && overlaps(cluster, ranks)) compile::resolve_overlap(parallelism.plan);
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
  Step step = {.mesh = whole.mesh, .plan = whole.plan, .sizes = sizes};
  for (const ir::Node& node : whole.graph.nodes)
    step.flops += ir::flops_of(whole.graph, node) * static_cast<double>(sizes.num_microbatches);
  for (auto& [members] : kinds_of_ranks(whole)) {
    Kind kind = {.ranks = std::move(members)};
    const int first = kind.ranks.front();
    const int threads = threads_of_rank(std::min(ranks, cluster.devices_beside(first)));
    kind.forecast = forecast_of(recipe, whole, captured, first, threads, sums ? &*sums : nullptr);
    if (sums) kind.update = compile::compile_local(*sums, first).program;
    step.kinds.push_back(std::move(kind));
  }
  return step;
}

// In the order of a trainer.
static std::vector<simulate::Run> runs_of(const Step& step, const Kind& kind) {
  const auto& [mesh, plan] = std::tie(step.mesh, step.plan);
  const auto microbatches = static_cast<int>(step.sizes.num_microbatches);
  const program::Program& program = kind.forecast.program;
  std::vector<simulate::Run> runs;
  const int stages = compile::num_stages_of(plan, mesh);
  if (stages > 1) {
    const int stage = mesh.coordinate(kind.ranks.front(), mesh.axis(plan.pipeline_axis));
    const schedule::Timeline timeline =
        train::timeline_of(plan.schedule, stages, static_cast<std::size_t>(microbatches));
    simulate::append_runs(runs, timeline, stage,
                          std::vector(static_cast<std::size_t>(microbatches), &program));
  } else {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch)
      simulate::append_runs(runs, program, microbatch);
  }
  if (kind.update) simulate::append_runs(runs, *kind.update, 0);
  return runs;
}

static std::string in_milliseconds(std::int64_t nanoseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f ms", static_cast<double>(nanoseconds) / 1e6);
  return text;
}

static std::string share(double part, double whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", whole > 0 ? 100 * part / whole : 0.0);
  return text;
}

static double peak_of(const cost::Cluster& cluster, DType dtype, int ranks) {
  double peak = 0;
  for (int rank = 0; rank < ranks; ++rank) peak += cost::arithmetic_of(cluster.kind_of(rank), dtype).peak;
  return peak;
}

static DType dtype_of(const Recipe& recipe) {
  if (recipe.training.dtype == FloatType::Float64) return DType::Float64;
  return parse_dtype(recipe.precision.compute).value_or(DType::Float32);
}

static void say_speed(const Recipe& recipe, const Step& step, const cost::Cluster& cluster, int ranks,
                      std::int64_t nanoseconds) {
  const double seconds = static_cast<double>(nanoseconds) / 1e9;
  const auto samples = static_cast<double>(step.sizes.samples());
  std::string line = concat("step ", in_milliseconds(nanoseconds), ", ",
                            observe::with_commas(std::llround(samples / seconds)), " samples a second");
  if (recipe.dataset.name == DatasetName::Text)
    line += concat(
        " of ", recipe.training.seq_len, " tokens, ",
        observe::with_commas(std::llround(samples * static_cast<double>(recipe.training.seq_len) / seconds)),
        " tokens a second");
  line += concat(", MFU ", share(step.flops / seconds, peak_of(cluster, dtype_of(recipe), ranks)));
  say(line);
}

static void say_memory(const Step& step, const cost::Cluster& cluster) {
  const Kind* most = &step.kinds.front();
  for (const Kind& kind : step.kinds)
    if (kind.forecast.largest().bytes > most->forecast.largest().bytes) most = &kind;
  const Phase& phase = most->forecast.largest();
  const int rank = most->ranks.front();
  say(concat("memory at most ", human_bytes(phase.bytes), " of ", human_bytes(cluster.kind_of(rank).memory),
             ", on rank ", rank, " in ", phase.name, phase.where.empty() ? "" : concat(": ", phase.where)));
  for (const Kind& kind : step.kinds)
    for (const int each : kind.ranks)
      if (const auto has = cluster.kind_of(each).memory; kind.forecast.largest().bytes > has) {
        say(concat("this does not fit: rank ", each, " would need ",
                   human_bytes(kind.forecast.largest().bytes), ", and its ", cluster.kind_of(each).name,
                   " has ", human_bytes(has)));
        return;
      }
}

static void say_what(const Step& step, const cost::Cluster& cluster, const Simulate& options) {
  const int hosts = cluster.host_of(options.ranks - 1) + 1;
  const std::int64_t microbatches = step.sizes.num_microbatches;
  sharding::Mesh axes = step.mesh;
  std::erase_if(axes.axes, [](const sharding::Axis& axis) { return axis.size == 1; });
  const std::string mesh = to_text(axes);
  say(concat(options.cluster, ": ", options.ranks, options.ranks == 1 ? " device" : " devices", " on ", hosts,
             hosts == 1 ? " host" : " hosts", mesh.empty() ? "" : concat(", ", mesh), ", ", microbatches,
             microbatches == 1 ? " micro-batch" : " micro-batches"));
  if (!cluster.machine.empty() && cluster.machine != machine())
    say(concat(options.cluster, " was measured on another machine: ", cluster.machine, "; this is ",
               machine()));
}

// Of the ranks for which each is worst.
static void say_waiting(const simulate::Tasks& tasks, const std::vector<simulate::Span>& spans,
                        std::int64_t end) {
  const auto of_step = [&](std::int64_t part) {
    return concat(share(static_cast<double>(part), static_cast<double>(end)), " of the step");
  };
  const std::vector<simulate::Communication> all = simulate::communication(tasks, spans);
  const simulate::Communication& worst =
      *std::ranges::max_element(all, {}, &simulate::Communication::exposed);
  say(concat("communication ", in_milliseconds(worst.moving), ", exposed ", in_milliseconds(worst.exposed),
             ", ", share(static_cast<double>(worst.exposed), static_cast<double>(worst.moving)),
             " of it and ", of_step(worst.exposed), ", on rank ", worst.rank));
  std::int64_t most_idle = 0;
  for (const simulate::Bubble& bubble : simulate::bubbles(tasks, spans, "compute"))
    most_idle = std::max(most_idle, end - (bubble.of - bubble.nanoseconds));
  say(concat("a rank computes nothing for ", in_milliseconds(most_idle), " at most, ", of_step(most_idle)));
}

int simulate_step(const Recipe& recipe, const Simulate& options) {
  const auto begin = std::chrono::steady_clock::now();
  SHOAL_CHECK(recipe.tables.empty(), InvalidInput,
              "simulate: the recipe has [[tables]], and what servers take is not priced");
  DiskFileSystem files;
  const cost::Cluster cluster = cost::cluster_from_toml(read_text(files, options.cluster), options.cluster);
  SHOAL_CHECK(options.ranks <= cluster.size(), InvalidInput, "simulate: --ranks is ", options.ranks, ", and ",
              options.cluster, " has ", cluster.size(), " devices. Remedy: fewer ranks, or more [[hosts]]");
  const Step step = step_of(recipe, cluster, options.ranks);
  std::vector<simulate::Ranks> kinds;
  for (const Kind& kind : step.kinds) kinds.push_back({kind.ranks, runs_of(step, kind)});
  const simulate::Tasks tasks = simulate::tasks_of(kinds, step.mesh, cluster);
  const std::vector<simulate::Span> spans = simulate::play(tasks);
  const std::int64_t end = std::ranges::max_element(spans, {}, &simulate::Span::end)->end;
  say_what(step, cluster, options);
  say_speed(recipe, step, cluster, options.ranks, end);
  say_waiting(tasks, spans, end);
  say_memory(step, cluster);
  if (!options.timeline.empty()) {
    const std::string html =
        observe::timeline_html(simulate::trace_of(tasks, spans),
                               concat(recipe.model.name, " on ", options.ranks, " of ", options.cluster));
    const auto file = files.create(options.timeline);
    file->write(std::as_bytes(std::span(html)));
    file->sync();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  char took[64];
  std::snprintf(took, sizeof took, "played in %.1f s, ", seconds.count());
  say(concat(took, human_bytes(observe::peak_memory_bytes()), " of memory"));
  return 0;
}

}  // namespace shoal::cli
