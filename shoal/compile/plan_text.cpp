// SPDX-License-Identifier: Apache-2.0
// A plan as text. A change here is one of plan.cpp, which reads it.
#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/compile/plan.h"
#include "shoal/compile/plan_words.h"
#include "shoal/schedule/csv.h"

namespace shoal::compile {

using sharding::Mesh;

static std::string_view name_of_float(DType dtype) {
  const auto* found = std::ranges::find(kFloats, dtype, &std::pair<std::string_view, DType>::second);
  return found != std::end(kFloats) ? found->first : name_of(dtype);
}

// The largest unit that divides it.
static std::string bytes_text(std::int64_t bytes) {
  constexpr std::pair<int, const char*> kUnits[] = {{30, "GiB"}, {20, "MiB"}, {10, "KiB"}};
  for (const auto& [shift, unit] : kUnits)
    if (bytes > 0 && bytes % (std::int64_t{1} << shift) == 0) return concat(bytes >> shift, unit);
  return concat(bytes);
}

static std::string exact_text(double number) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.begin(), text.end(), number).ptr};
}

std::string to_text(const Plan& plan) {
  const Plan defaults;
  std::string text;
  const auto list = [&](const char* verb, const auto& items, const auto& text_of) {
    text += verb;
    for (const auto& item : items) text += concat(' ', text_of(item));
    text += '\n';
  };
  if (!plan.mesh.empty()) text += concat("mesh ", to_text(Mesh{plan.mesh}), '\n');
  if (plan.batch_axes != defaults.batch_axes)
    list("batch", plan.batch_axes, [](const std::string& axis) { return axis; });
  for (const auto& [input, dim] : plan.batch_dims) text += concat("input ", input, " dim=", dim, '\n');
  for (const auto& input : plan.whole_inputs) text += concat("input ", input, " whole\n");
  if (plan.zero_axis != defaults.zero_axis || plan.zero_stage != defaults.zero_stage || !plan.gathers_again) {
    text += concat("zero ", plan.zero_axis);
    if (plan.zero_stage != -1) text += concat(" stage=", plan.zero_stage);
    if (!plan.gathers_again) text += " gathers=once";
    for (const std::string& pattern : plan.zero_parts) text += concat(" parts=", pattern);
    text += '\n';
  }
  for (const PlanLine& line : plan.lines) {
    text += concat(line.kind == PlanLine::Kind::Parameter ? "parameter " : "output ", line.pattern);
    for (const auto& [axis, placement] : line.placements) text += concat(' ', axis, '=', to_text(placement));
    text += '\n';
  }
  for (const auto& axis : plan.found_axes) text += concat("find ", axis, '\n');
  for (const auto& pattern : plan.splits) text += concat("split ", pattern, '\n');
  if (const auto& [tensor_batch, zero, kept, budget, rates] = plan.planner;
      plan.planner != defaults.planner) {
    text += concat("planner", tensor_batch ? " tensor_batch=true" : "", zero ? " zero=true" : "");
    if (kept > 0) text += concat(" kept=", bytes_text(kept));
    if (budget > 0) text += concat(" budget=", exact_text(budget));
    for (const auto& [key, rate] : kRates)
      if (rates.*rate != defaults.planner.rates.*rate) text += concat(' ', key, '=', exact_text(rates.*rate));
    text += '\n';
  }
  if (plan.pipeline_axis != defaults.pipeline_axis || plan.schedule != defaults.schedule ||
      plan.stages_per_rank != 0 || plan.microbatches != 0) {
    text += concat("pipeline ", plan.pipeline_axis);
    if (plan.schedule != defaults.schedule) text += concat(" schedule=", plan.schedule);
    if (plan.stages_per_rank != 0) text += concat(" stages_per_rank=", plan.stages_per_rank);
    if (plan.microbatches != 0) text += concat(" microbatches=", plan.microbatches);
    text += '\n';
  }
  if (plan.actions) {
    const std::string rows = schedule::to_csv(*plan.actions);
    for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end + 1) {
      end = rows.find('\n', begin);
      text += concat("actions ", std::string_view(rows).substr(begin, end - begin), '\n');
    }
  }
  for (const auto& begin : plan.stages) text += concat("stage ", begin, '\n');
  if (plan.reduces_each) text += concat("accumulate reduce=", *plan.reduces_each ? "each" : "once", '\n');
  for (const auto& [parameters, clicks] : plan.tables)
    text += concat("table ", parameters, clicks.empty() ? "" : " clicks=", clicks, '\n');
  if (plan.precision != defaults.precision) {
    text += concat("precision ", name_of_float(plan.precision.compute));
    for (const std::string& op : plan.precision.lower) text += concat(" lower=", op);
    for (const std::string& op : plan.precision.full) text += concat(" full=", op);
    if (plan.precision.scale != defaults.precision.scale)
      text += concat(" scale=", exact_text(plan.precision.scale));
    if (plan.precision.grows_after != defaults.precision.grows_after)
      text += concat(" grows_after=", plan.precision.grows_after);
    if (plan.precision.master != defaults.precision.master)
      text += concat(" master=", name_of(plan.precision.master));
    if (plan.precision.reduce != defaults.precision.reduce)
      text += concat(" reduce=", name_of_float(plan.precision.reduce));
    text += '\n';
  }
  if (const auto& [mode, modules, bytes, collectives] = plan.recompute;
      plan.recompute != defaults.recompute) {
    text += concat("recompute ", name_of(mode));
    for (const std::string& module : modules) text += concat(' ', module);
    if (bytes > 0) text += concat(" bytes=", bytes_text(bytes));
    text += collectives ? " collectives=again\n" : "\n";
  }
  if (plan.offload != defaults.offload) {
    text += "offload";
    for (const auto& [kind, member] : kOffloaded)
      if (plan.offload.*member) text += concat(' ', kind);
    if (plan.offload.least != defaults.offload.least)
      text += concat(" least=", bytes_text(plan.offload.least));
    text += '\n';
  }
  if (plan.gather_bytes != defaults.gather_bytes)
    text += concat("gather_ahead ", bytes_text(plan.gather_bytes), '\n');
  if (plan.bucket_bytes != defaults.bucket_bytes)
    text += concat("buckets ", bytes_text(plan.bucket_bytes), '\n');
  if (plan.prefetch_bytes) text += concat("prefetch ", bytes_text(*plan.prefetch_bytes), '\n');
  if (plan.overlap_bytes) text += concat("overlap ", bytes_text(*plan.overlap_bytes), '\n');
  return text;
}

}  // namespace shoal::compile
