// SPDX-License-Identifier: Apache-2.0
// shoal plan: what a recipe's step would be on a mesh of ranks. Nothing is trained, and the model has no
// memory, so that neither it nor the number of ranks has to fit this machine.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/forecast.h"
#include "shoal/cli/found_text.h"
#include "shoal/cli/planned_step.h"
#include "shoal/cli/prediction.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/verbs.h"
#include "shoal/comm_c10d/of_hosts.h"
#include "shoal/compile/compile.h"
#include "shoal/cost/cluster.h"
#include "shoal/ir/flops.h"
#include "shoal/observe/summary.h"
#include "shoal/rewrite/report.h"
#include "shoal/rewrite/report_page.h"
#include "shoal/runtime/measure.h"

namespace shoal::cli {

// Every kind of rank: what it would run, lowered as a rank does it. The most that one has in memory.
static Phase dry_run(const PlannedStep& step, bool says) {
  const compile::Whole& whole = step.whole();
  if (says) say(concat("dry run: ", whole.mesh.size(), " ranks of ", kinds_of_ranks(whole).size(), " kinds"));
  return step.most([&](const rewrite::RankClass& kind, const Forecast& forecast) {
    if (!says) return;
    const std::size_t count = kind.ranks.size();
    const program::Memory& memory = forecast.step;
    say(concat("  ", count, count == 1 ? " rank as rank " : " ranks as rank ", kind.first(), ": ",
               program::size_of(forecast.program), " instructions, ", human_bytes(memory.sources.total()),
               " between steps, ", human_bytes(memory.peak.total()), " at most in one"));
  });
}

static std::string text_of_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", seconds);
  return text;
}

static void say_times(const std::vector<compile::MoveTime>& times) {
  std::string line = "compiled:";
  for (const auto& [move, seconds] : times)
    line += concat(line.back() == ':' ? " " : ", ", move, ' ', text_of_seconds(seconds));
  say(line);
}

// What recompute has chosen by bytes.
static void say_fit(const compile::Fit& fit) {
  char text[160];
  std::snprintf(text, sizeof text,
                "%.1f %% of the work of forward and backward, and no choice does less than %.1f %%",
                100 * fit.again / fit.step, 100 * fit.bound / fit.step);
  say(concat("recompute: ", human_bytes(fit.bytes), " of activations at once, without it ",
             human_bytes(fit.kept_all), "; made again is ", text));
}

// Where each stage begins, what it computes and keeps.
static void say_stages(const compile::Whole& whole) {
  const std::size_t count = whole.stages.begins.size() + 1;
  std::vector<double> flops(count);
  std::vector<std::int64_t> parameters(count);
  std::int64_t shared = 0;
  for (const ir::Node& node : whole.graph.nodes)
    if (node.phase != ir::Phase::Update)
      flops[static_cast<std::size_t>(node.stage)] += ir::flops_of(whole.graph, node);
  for (const auto& source : whole.graph.sources) {
    const auto& value = whole.graph.at(source.value);
    if (value.role != ir::Role::Parameter) continue;
    const int owner = whole.stages.owner_of(source.name);
    (owner == rewrite::Stages::kShared ? shared : parameters[static_cast<std::size_t>(owner)]) +=
        ir::num_elements(value.type);
  }
  double all = 0;
  for (const double each : flops) all += each;
  const int ranks = compile::pipeline_ranks_of(whole.plan, whole.mesh);
  for (std::size_t stage = 0; stage < count; ++stage) {
    char share[32];
    std::snprintf(share, sizeof share, "%.1f %%", all > 0 ? 100 * flops[stage] / all : 0.0);
    const bool has_several = static_cast<std::size_t>(ranks) < count;
    say(concat("stage ", stage, has_several ? concat(" on rank ", whole.stages.rank_of_stage[stage]) : "",
               ": from ", stage == 0 ? "the beginning" : whole.stages.begins[stage - 1], ", ", share,
               " of the work, ", observe::with_commas(parameters[stage]), " parameters of its own"));
  }
  if (shared > 0)
    say(concat("stages share ", observe::with_commas(shared), " parameters, whose gradients are summed up"));
}

// What follows the micro-batches.
static void say_update(const PlannedStep& step) {
  const std::string text = rewrite::traffic_text(step.update_report(), "the update after them");
  say(text.substr(0, text.size() - 1));
  say(compile::reduces_each(step.whole().plan, step.whole().mesh)
          ? "gradients: reduced in each micro-batch, which keeps them in parts"
          : "gradients: summed up on each rank, and reduced once a step");
}

// What the ranks of each axis talk over: on the hosts of profiling.cluster, or on one.
static void say_media(const Recipe& recipe, const sharding::Mesh& mesh) {
  std::vector<int> hosts(static_cast<std::size_t>(mesh.size()));
  if (const std::string& path = recipe.profiling.cluster; !path.empty()) {
    const cost::Cluster cluster = cluster_of(recipe);
    SHOAL_CHECK(cluster.size() >= mesh.size(), InvalidInput, "profiling.cluster: ", path, " has ",
                cluster.size(), " devices, and there are ", mesh.size(),
                " ranks. Remedy: fewer ranks, or the file of another cluster");
    for (int rank = 0; rank < mesh.size(); ++rank)
      hosts[static_cast<std::size_t>(rank)] = cluster.host_of(rank);
  }
  std::string line;
  for (std::size_t axis = mesh.axes.size(); axis-- > 0;) {
    if (mesh.axes[axis].size == 1) continue;
    std::vector<int> of_members;
    for (const int rank : mesh.group(0, {static_cast<int>(axis)}))
      of_members.push_back(hosts[static_cast<std::size_t>(rank)]);
    std::vector<int> first_ranks;
    for (const int host : of_members)
      first_ranks.push_back(static_cast<int>(std::ranges::find(of_members, host) - of_members.begin()));
    const std::string medium =
        recipe.training.device == DeviceType::CUDA ? "NCCL" : comm_c10d::describe_of_hosts(first_ranks);
    line += concat(line.empty() ? "messages: " : "; ", "along ", mesh.axes[axis].name, " by ", medium);
  }
  if (!line.empty()) say(line);
}

static void save(const std::string& text, const char* option, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  SHOAL_CHECK(file.flush(), InvalidInput, option, ": ", path, " cannot be written: ", std::strerror(errno));
}

static std::string picture_of(const PlannedStep& step) {
  const auto& [recipe, whole] = std::tie(step.recipe(), step.whole());
  const std::string& plan = recipe.parallelism.plan;
  return rewrite::report_html(
      whole.mesh, step.step_report(),
      concat(recipe.model.name, " on ", whole.mesh.size(), whole.mesh.size() == 1 ? " rank" : " ranks",
             plan.empty() ? "" : concat(" by ", plan)),
      whole.plan.pipeline_axis);
}

int plan(const Recipe& given, const Options& options) {
  if (!options.diff.empty()) return plan_diff(given, options);
  const auto begin = std::chrono::steady_clock::now();
  const PlannedStep step(given, options.ranks, options.print_after);
  const auto& [recipe, whole] = std::tie(step.recipe(), step.whole());
  if (!step.choice().empty()) say(step.choice());
  if (!options.save_plan.empty()) save(to_text(whole.plan), "--save-plan", options.save_plan);
  if (!options.picture.empty()) save(picture_of(step), "--picture", options.picture);
  say(concat("model: ", recipe.model.name, ", ", observe::with_commas(step.elements()), " parameters; ",
             observe::with_commas(static_cast<std::int64_t>(whole.graph.nodes.size())), " ops for ",
             step.sizes().microbatch, " samples at once"));
  const std::string of = step.sizes().num_microbatches == 1
                             ? "a step"
                             : concat("each of ", step.sizes().num_microbatches, " micro-batches of a step");
  const std::string text = rewrite::to_text(whole.mesh, step.report(), of);
  say(text.substr(0, text.size() - 1));
  say_media(recipe, whole.mesh);
  for (const planner::Found& each : whole.found) {
    const std::string found = found_text(whole, each);
    say(found.substr(0, found.size() - 1));
  }
  if (step.first().fit) say_fit(*step.first().fit);
  if (!whole.stages.owners.empty()) say_stages(whole);
  if (!step.is_in_one()) say_update(step);
  const Forecast forecast = step.forecast();
  const std::string memory = to_text(forecast);
  say(memory.substr(0, memory.size() - 1));
  if (options.dry_run || !recipe.memory.limit.empty()) check_limit(recipe, dry_run(step, options.dry_run));
  if (options.measure) {
    at::set_num_threads(step.threads());
    const std::string measured = to_text(runtime::measure(forecast.program, forecast.step, whole.mesh, 0));
    say(measured.substr(0, measured.size() - 1));
  }
  say_times(step.first().whole.times);
  say_took("planned", begin);
  return 0;
}

}  // namespace shoal::cli
