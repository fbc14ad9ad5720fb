// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/pins.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/compile/update.h"
#include "shoal/sharding/state_blocks.h"

namespace shoal::compile {

using ir::Role;
using rewrite::ParameterPins;
using sharding::Layout;
using sharding::Mesh;
using sharding::Shape;
using sharding::Shard;

static std::optional<std::size_t> find_axis(const Mesh& mesh, std::string_view name) {
  const auto found = std::ranges::find(mesh.axes, name, &sharding::Axis::name);
  if (found == mesh.axes.end()) return std::nullopt;
  return static_cast<std::size_t>(found - mesh.axes.begin());
}

bool is_batch_axis(const Plan& plan, std::string_view axis) {
  return std::ranges::find(plan.batch_axes, axis) != plan.batch_axes.end();
}

int batch_dim_of(const Plan& plan, const std::string& input) {
  const auto found = plan.batch_dims.find(input);
  return found == plan.batch_dims.end() ? 0 : found->second;
}

bool is_named(const std::string& whole, const std::string& input) {
  const std::string_view item = ir::item_of(input);
  return item.starts_with(whole) && (item.size() == whole.size() || item[whole.size()] == '.');
}

bool is_cut(const Plan& plan, const std::string& input, std::size_t num_dims) {
  return static_cast<std::size_t>(batch_dim_of(plan, input)) < num_dims && !ir::is_beside(input) &&
         std::ranges::none_of(
             plan.whole_inputs, [&](const std::string& whole) { return is_named(whole, input); });
}

Layout layout_of_batch(const Plan& plan, const Mesh& mesh, int dim) {
  Layout layout = sharding::replicated(mesh);
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (is_batch_axis(plan, mesh.axes[axis].name) && mesh.axes[axis].size > 1)
      layout.placements[axis] = Shard{.dim = dim};
  return layout;
}

sharding::Range samples_of(const Plan& plan, const Mesh& mesh, int rank, std::int64_t size) {
  const auto ranges = sharding::box_of(mesh, layout_of_batch(plan, mesh), {size}, rank).dims[0];
  return ranges.empty() ? sharding::Range{} : ranges[0];
}

int zero_stage_of(const Plan& plan, const Mesh& mesh) {
  const auto axis = find_axis(mesh, plan.zero_axis);
  const int ranks = axis ? mesh.axes[*axis].size : 1;
  SHOAL_CHECK(plan.zero_stage >= -1 && plan.zero_stage <= 3, InvalidInput, "parallelism: ZeRO stage ",
              plan.zero_stage, "; it is 0, 1, 2 or 3, or -1: 3 where the shard degree is above 1");
  SHOAL_CHECK(plan.zero_stage <= 0 || ranks > 1, InvalidInput, "parallelism: ZeRO stage ", plan.zero_stage,
              " stores parts over the axis '", plan.zero_axis, "', and its degree is 1; set it above 1");
  const int stage = plan.zero_stage == -1 ? (ranks > 1 ? 3 : 0) : plan.zero_stage;
  SHOAL_CHECK(stage == 0 || is_batch_axis(plan, plan.zero_axis), InvalidInput, "parallelism: ZeRO stage ",
              stage, " stores parts over the axis '", plan.zero_axis,
              "', which does not cut the batch; name it in the plan's line 'batch'");
  return stage;
}

bool reduces_each(const Plan& plan, const Mesh& mesh) {
  return plan.reduces_each.value_or(zero_stage_of(plan, mesh) >= 2);
}

// The dim whose parts differ least between ranks; the first of these.
static std::optional<int> dim_to_cut(const Shape& shape, int count) {
  std::optional<int> best;
  double lowest = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < 2) continue;
    const auto size = static_cast<double>(shape[dim]);
    const double excess = static_cast<double>((shape[dim] + count - 1) / count) * count / size;
    if (best && excess >= lowest) continue;
    best = static_cast<int>(dim);
    lowest = excess;
  }
  return best;
}

// Of dim 0, so many together; rank 0's shape says how many there are.
static Shard in_blocks(const Shape& local, int count) {
  const std::int64_t together = sharding::rows_together(local);
  const std::int64_t units = (local[0] + together - 1) / together;
  std::vector<std::int64_t> sizes;
  std::int64_t left = local[0];
  for (int i = 0; i < count; ++i) {
    const auto range = sharding::units_of({.dim = 0}, units, i, count);
    sizes.push_back(std::min(left, (range.end - range.begin) * together));
    left -= sizes.back();
  }
  return {.dim = 0, .weights = std::move(sizes)};
}

// As `layout`, and cut over the ranks of that axis too, where that leaves blocks whole that are to be.
static Layout cut_over(const Mesh& mesh, Layout layout, std::size_t axis, const Shape& shape, Uncut uncut) {
  const int count = mesh.axes[axis].size;
  if (count == 1) return layout;
  const Shape local = sharding::local_shape(mesh, layout, shape, 0);
  const auto dim = dim_to_cut(local, count);
  if (!dim) return layout;
  const auto fits = [&] {
    return uncut != Uncut::Blocks || sharding::layout_of_maxima(mesh, layout, shape).has_value();
  };
  for (const Shard& shard : {Shard{.dim = *dim}, in_blocks(local, count)}) {
    layout.placements[axis] = shard;
    if (fits()) return layout;
  }
  layout.placements[axis] = sharding::Replicate{};
  return layout;
}

static void give_to_rank(const Plan& plan, const Mesh& mesh, int owner, ParameterPins& pins) {
  const auto axis = *find_axis(mesh, plan.pipeline_axis);
  if (owner == rewrite::Stages::kShared) {  // each has it, and a summand of its gradient
    pins.gradient.placements[axis] = pins.summed.placements[axis] = sharding::Partial{};
    return;
  }
  std::vector<std::int64_t> weights(static_cast<std::size_t>(mesh.axes[axis].size));
  weights[static_cast<std::size_t>(owner)] = 1;
  const Shard all_of_one{.dim = 0, .weights = std::move(weights)};
  for (Layout* layout : {&pins.kept, &pins.used, &pins.gradient, &pins.updated, &pins.summed, &pins.maxima})
    if (!layout->placements.empty()) layout->placements[axis] = all_of_one;
}

ParameterPins pins_of(const Plan& plan, const Mesh& mesh, const std::string& parameter, const Shape& shape,
                      Uncut uncut, std::string_view plan_name, std::optional<int> owner) {
  const Layout used = parameter_layout(plan, mesh, parameter);
  const std::string why = misfit(mesh, used, shape);
  SHOAL_CHECK(why.empty(), InvalidInput, plan_name, ": parameter ", parameter, " cannot be ", to_text(used),
              ": ", why);
  const bool is_in_parts = std::ranges::any_of(
      plan.zero_parts, [&](const std::string& pattern) { return rewrite::matches(pattern, parameter); });
  const int stage_of_all = zero_stage_of(plan, mesh), stage = is_in_parts ? 3 : stage_of_all;
  const auto zero = find_axis(mesh, plan.zero_axis);
  const Layout parts = stage == 0 ? used : cut_over(mesh, used, *zero, shape, uncut);
  ParameterPins pins = {.kept = stage == 3 ? parts : used,
                        .used = used,
                        .gradient = parts,
                        .updated = parts,
                        .summed = {},
                        .maxima = {}};
  if (stage == 1 && parts != used) {
    pins.gradient = used;
    pins.gradient.placements[*zero] = sharding::Partial{};
  }
  if (uncut == Uncut::All) pins.gradient = pins.updated = sharding::replicated(mesh);
  if (uncut == Uncut::Blocks) {
    const auto maxima = sharding::layout_of_maxima(mesh, pins.updated, shape);
    SHOAL_CHECK(
        maxima, InvalidInput, plan_name, ": parameter ", parameter, " is ", to_text(pins.updated),
        ", which cuts blocks of ", sharding::kStateBlock,
        " elements, and optimizer state in 8 bits has one maximum for each. Remedy: parts of whole blocks "
        "(sizes that are multiples of ",
        sharding::kStateBlock, "), this parameter whole, or state_dtype bfloat16");
    pins.maxima = *maxima;
  }
  pins.summed = pins.gradient;
  if (!reduces_each(plan, mesh)) {
    pins.summed = used;
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
      if (is_batch_axis(plan, mesh.axes[axis].name) && mesh.axes[axis].size > 1)
        pins.summed.placements[axis] = sharding::Partial{};
  }
  if (owner) give_to_rank(plan, mesh, *owner, pins);
  return pins;
}

Uncut uncut_by(std::span<const OptimizerPart> optimizers, const std::string& parameter, const Shape& shape) {
  for (const auto& part : optimizers)
    if (!part.contains || part.contains(parameter)) return uncut_by(part.optimizer, shape);
  return Uncut::Elements;
}

bool is_updated_whole(std::span<const OptimizerPart> optimizers, const std::string& parameter) {
  return uncut_by(optimizers, parameter, {}) == Uncut::All;
}

rewrite::Pins pins_of(const Plan& plan, const Mesh& mesh, const ir::Graph& graph,
                      std::span<const OptimizerPart> optimizers, std::string_view plan_name,
                      const rewrite::Stages* stages) {
  rewrite::Pins pins{.parameters = {}, .inputs = {}, .outputs = {}, .gathers_again = plan.gathers_again};
  for (const auto& source : graph.sources) {
    const auto& [type, role, producer] = graph.at(source.value);
    if (role == Role::Parameter)
      pins.parameters.emplace(
          source.name,
          pins_of(plan, mesh, source.name, type.shape, uncut_by(optimizers, source.name, type.shape),
                  plan_name,
                  stages == nullptr ? std::nullopt : std::optional(stages->place_of(source.name))));
    else if (role == Role::Input && is_cut(plan, source.name, type.shape.size()))
      pins.inputs.emplace(source.name, layout_of_batch(plan, mesh, batch_dim_of(plan, source.name)));
  }
  // The update of accumulated gradients has no modules.
  if (std::ranges::none_of(graph.nodes, [](const auto& node) { return node.phase == ir::Phase::Forward; }))
    return pins;
  for (const auto& line : plan.lines) {
    if (line.kind != PlanLine::Kind::Output) continue;
    rewrite::OutputPin pin{.module = line.pattern, .placements = {}};
    for (const auto& [axis, placement] : line.placements)
      if (const auto index = static_cast<std::size_t>(mesh.axis(axis)); mesh.axes[index].size > 1)
        pin.placements.emplace(index, placement);
    pins.outputs.push_back(std::move(pin));
  }
  return pins;
}

}  // namespace shoal::compile
