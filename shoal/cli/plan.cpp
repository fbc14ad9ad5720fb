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
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/forecast.h"
#include "shoal/cli/found_text.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/memory_choice.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/accumulate.h"
#include "shoal/compile/compile.h"
#include "shoal/ir/flops.h"
#include "shoal/observe/summary.h"
#include "shoal/rewrite/report.h"
#include "shoal/runtime/measure.h"

namespace shoal::cli {

// Of a micro-batch.
static bool has_sums(const compile::Whole& whole) {
  return std::ranges::any_of(whole.graph.sources, [&](const ir::Source& source) {
    return whole.graph.at(source.value).role == ir::Role::Gradient;
  });
}

// Every kind of rank: what it would run, lowered as a rank does it. The most that one has in memory.
static Phase dry_run(const Recipe& recipe, const compile::Whole& whole, std::int64_t captured, int threads,
                     bool says) {
  const auto classes = kinds_of_ranks(whole);
  if (says) say(concat("dry run: ", whole.mesh.size(), " ranks of ", classes.size(), " kinds"));
  std::optional<compile::Whole> sums;
  if (has_sums(whole)) sums = update_of_sums(whole);
  Phase most;
  for (const auto& kind : classes) {
    const int first = kind.first();
    const std::size_t count = kind.ranks.size();
    const Forecast forecast = forecast_of(recipe, whole, captured, first, threads, sums ? &*sums : nullptr);
    const program::Memory& step = forecast.step;
    if (forecast.largest().bytes > most.bytes) most = forecast.largest();
    if (!says) continue;
    say(concat("  ", count, count == 1 ? " rank as rank " : " ranks as rank ", first, ": ",
               program::size_of(forecast.program), " instructions, ", human_bytes(step.sources.total()),
               " between steps, ", human_bytes(step.peak.total()), " at most in one"));
  }
  return most;
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
static void say_update(const compile::Whole& microbatch, compile::Settings settings) {
  const auto& [graph, plan, mesh] = std::tie(microbatch.graph, microbatch.plan, microbatch.mesh);
  settings.then = compile::Then::UpdateSums;
  settings.stages = microbatch.stages.owners.empty() ? nullptr : &microbatch.stages;
  const auto made =
      compile::compile(compile::graph_of_sums(graph, plan.precision.master), plan, mesh, 0, settings);
  const std::string text =
      rewrite::traffic_text(rewrite::report_of(made.whole.placed, made.local, 0), "the update after them");
  say(text.substr(0, text.size() - 1));
  say(compile::reduces_each(plan, mesh) ? "gradients: reduced in each micro-batch, which keeps them in parts"
                                        : "gradients: summed up on each rank, and reduced once a step");
}

static void save(const compile::Plan& plan, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << to_text(plan);
  SHOAL_CHECK(file.flush(), InvalidInput, "--save-plan: ", path,
              " cannot be written: ", std::strerror(errno));
}

int plan(const Recipe& given, const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const MemoryChoice choice = within_limit(given, options.ranks, threads_of_rank(options.ranks));
  if (!choice.text.empty()) say(choice.text);
  const Recipe& recipe = choice.recipe;
  const Parallelism parallelism = parallelism_of(recipe, options.ranks);
  const auto& [mesh, world, tensors, plan, plan_name, folder, limit] = parallelism;
  const StepSizes sizes = sizes_of(recipe, parallelism);
  const torch::nn::AnyModule model = hollow_model(recipe);
  std::int64_t elements = 0;
  std::vector<std::string> names;
  for (const auto& parameter : model.ptr()->named_parameters()) {
    if (!compile::is_table(plan, parameter.key())) elements += parameter.value().numel();
    names.push_back(parameter.key());
  }
  check_fits(plan, mesh, names, plan_name);
  auto [graph, captured] = captured_step(recipe, model, sizes.microbatch);
  const OptimizerPart part{{}, optimizer_of(recipe)};
  compile::Settings settings = settings_of(recipe, part, options.print_after);
  settings.plan_name = plan_name;
  const bool is_one = sizes.num_microbatches == 1;
  const bool is_staged = compile::num_stages_of(plan, mesh) > 1;
  if (!is_one || is_staged) settings.then = compile::Then::Accumulate;
  const compile::Whole whole = compile::compile_whole(std::move(graph), plan, mesh, settings);
  if (!options.save_plan.empty()) save(whole.plan, options.save_plan);
  say(concat("model: ", recipe.model.name, ", ", observe::with_commas(elements), " parameters; ",
             observe::with_commas(static_cast<std::int64_t>(whole.graph.nodes.size())), " ops for ",
             sizes.microbatch, " samples at once"));
  const compile::Compiled first = compile::compile_local(whole, 0);
  const std::string of =
      is_one ? "a step" : concat("each of ", sizes.num_microbatches, " micro-batches of a step");
  const std::string text =
      rewrite::to_text(mesh, rewrite::report_of(whole.placed, first.local, 0, plan.pipeline_axis), of);
  say(text.substr(0, text.size() - 1));
  if (whole.found) {
    const std::string found = found_text(whole);
    say(found.substr(0, found.size() - 1));
  }
  if (first.fit) say_fit(*first.fit);
  if (is_staged) say_stages(whole);
  if (!is_one || is_staged) say_update(whole, settings);
  const int threads = threads_of_rank(options.ranks);
  const Forecast forecast = forecast_of(recipe, whole, captured, 0, threads);
  const std::string memory = to_text(forecast);
  say(memory.substr(0, memory.size() - 1));
  if (options.dry_run || !recipe.memory.limit.empty())
    check_limit(recipe, dry_run(recipe, whole, captured, threads, options.dry_run));
  if (options.measure) {
    at::set_num_threads(threads);
    const std::string measured = to_text(runtime::measure(forecast.program, forecast.step, mesh, 0));
    say(measured.substr(0, measured.size() - 1));
  }
  say_times(first.whole.times);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  char took[64];
  std::snprintf(took, sizeof took, "planned in %.1f s, ", seconds.count());
  say(concat(took, human_bytes(observe::peak_memory_bytes()), " of memory"));
  return 0;
}

}  // namespace shoal::cli
