// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/planned_step.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/cli/hollow.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/accumulate.h"

namespace shoal::cli {

PlannedStep::PlannedStep(const Recipe& given, int ranks, const std::string& print_after)
    : choice_(WithinLimit(given, ranks, threads_of_rank(ranks)).choose()),
      threads_(threads_of_rank(ranks)),
      parallelism_(parallelism_of(recipe(), ranks)),
      sizes_(sizes_of(recipe(), parallelism_)),
      part_{{}, optimizer_of(recipe())},
      settings_(settings_of(recipe(), part_, print_after)) {
  const auto& [plan, mesh] = std::tie(parallelism_.plan, parallelism_.mesh);
  const torch::nn::AnyModule model = hollow_model(recipe());
  std::vector<std::string> names;
  for (const auto& parameter : model.ptr()->named_parameters()) {
    if (!compile::is_table(plan, parameter.key())) elements_ += parameter.value().numel();
    names.push_back(parameter.key());
  }
  check_fits(plan, mesh, names, parallelism_.plan_name);
  auto [graph, captured] = captured_step(recipe(), model, sizes_.microbatch);
  captured_ = captured;
  settings_.plan_name = parallelism_.plan_name;
  const bool is_staged = compile::num_stages_of(plan, mesh) > 1;
  if (sizes_.num_microbatches > 1 || is_staged) settings_.then = compile::Then::Accumulate;
  whole_ = compile::compile_whole(std::move(graph), plan, mesh, settings_);
  first_ = compile::compile_local(whole_, 0);
}

rewrite::Report PlannedStep::report() const {
  return rewrite::report_of(whole_.placed, first_.local, 0, parallelism_.plan.pipeline_axis);
}

rewrite::Report PlannedStep::update_report() const {
  compile::Settings settings = settings_;
  settings.then = compile::Then::UpdateSums;
  settings.stages = whole_.stages.owners.empty() ? nullptr : &whole_.stages;
  const auto made = compile::compile(compile::graph_of_sums(whole_.graph, whole_.plan.precision.master),
                                     whole_.plan, whole_.mesh, 0, settings);
  return rewrite::report_of(made.whole.placed, made.local, 0);
}

rewrite::Report PlannedStep::step_report() const {
  return is_in_one() ? report() : rewrite::of_step(report(), sizes_.num_microbatches, update_report());
}

Forecast PlannedStep::forecast() const { return forecast_of(recipe(), whole_, captured_, 0, threads_); }

Phase PlannedStep::most(const std::function<void(const rewrite::RankClass&, const Forecast&)>& look) const {
  std::optional<compile::Whole> sums;
  if (!is_in_one()) sums = update_of_sums(whole_);
  Phase most;
  for (const auto& kind : kinds_of_ranks(whole_)) {
    const Forecast forecast =
        forecast_of(recipe(), whole_, captured_, kind.first(), threads_, sums ? &*sums : nullptr);
    if (forecast.largest().bytes > most.bytes) most = forecast.largest();
    look(kind, forecast);
  }
  return most;
}

}  // namespace shoal::cli
