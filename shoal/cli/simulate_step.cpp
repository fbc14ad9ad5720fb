// SPDX-License-Identifier: Apache-2.0
// shoal simulate RECIPE: the programs of all ranks, made as a trainer makes them and played on a cluster.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/cli/machine.h"
#include "shoal/cli/played_step.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/simulate.h"
#include "shoal/cost/cluster.h"
#include "shoal/cost/price.h"
#include "shoal/observe/summary.h"
#include "shoal/observe/timeline.h"
#include "shoal/simulate/measures.h"

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

static std::string rate(double a_second) {  // "0.404", "12.9", "1,234"
  if (a_second >= 100) return observe::with_commas(std::llround(a_second));
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", a_second);
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

static void say_speed(const Recipe& recipe, const PlayedStep& step, const cost::Cluster& cluster, int ranks,
                      std::int64_t nanoseconds) {
  const double seconds = static_cast<double>(nanoseconds) / 1e9;
  const double samples = static_cast<double>(step.sizes.samples()) / seconds;
  std::string line = concat("step ", in_milliseconds(nanoseconds), ", ", rate(samples), " samples a second");
  if (recipe.dataset.name == DatasetName::Text)
    line += concat(" of ", recipe.training.seq_len, " tokens, ",
                   rate(samples * static_cast<double>(recipe.training.seq_len)), " tokens a second");
  line += concat(", MFU ", share(step.flops / seconds, peak_of(cluster, dtype_of(recipe), ranks)));
  say(line);
}

static void say_memory(const PlayedStep& step, const cost::Cluster& cluster) {
  const PlayedKind* most = &step.kinds.front();
  for (const PlayedKind& kind : step.kinds)
    if (kind.forecast.largest().bytes > most->forecast.largest().bytes) most = &kind;
  const Phase& phase = most->forecast.largest();
  const int rank = most->ranks.front();
  say(concat("memory at most ", human_bytes(phase.bytes), " of ", human_bytes(cluster.kind_of(rank).memory),
             ", on rank ", rank, " in ", phase.name, phase.where.empty() ? "" : concat(": ", phase.where)));
  for (const PlayedKind& kind : step.kinds)
    for (const int each : kind.ranks)
      if (const auto has = cluster.kind_of(each).memory; kind.forecast.largest().bytes > has) {
        say(concat("this does not fit: rank ", each, " would need ",
                   human_bytes(kind.forecast.largest().bytes), ", and its ", cluster.kind_of(each).name,
                   " has ", human_bytes(has)));
        return;
      }
}

static void say_what(const PlayedStep& step, const cost::Cluster& cluster, const Simulate& options) {
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
  DiskFileSystem files;
  const cost::Cluster cluster = cost::cluster_from_toml(read_text(files, options.cluster), options.cluster);
  SHOAL_CHECK(options.ranks <= cluster.size(), InvalidInput, "simulate: --ranks is ", options.ranks, ", and ",
              options.cluster, " has ", cluster.size(), " devices. Remedy: fewer ranks, or more [[hosts]]");
  const PlayedStep step = play_step(recipe, cluster, options.ranks);
  const auto& [tasks, spans] = std::tie(step.tasks, step.spans);
  const std::int64_t end = step.nanoseconds();
  say_what(step, cluster, options);
  say_speed(recipe, step, cluster, options.ranks, end);
  say_waiting(tasks, spans, end);
  say_memory(step, cluster);
  if (!options.timeline.empty()) {
    const observe::Trace trace = simulate::trace_of(tasks, spans);
    const std::string html =
        observe::timeline_html({{.what = "", .trace = &trace}},
                               concat(recipe.model.name, " on ", options.ranks, " of ", options.cluster));
    const auto file = files.create(options.timeline);
    file->write(std::as_bytes(std::span(html)));
    file->sync();
  }
  say_took("played", begin);
  return 0;
}

}  // namespace shoal::cli
