// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/norms.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

namespace shoal::rewrite {

using ir::TensorType;
using ir::ValueId;
using sharding::Layout;

static bool cuts(const Layout& layout, int axis) {
  return std::holds_alternative<sharding::Shard>(layout.placements[static_cast<std::size_t>(axis)]);
}

// The sum over all ranks of these axes.
static ValueId summed(ir::Graph& made, const Place& place, const ir::Node& of, ValueId value,
                      const std::vector<int>& axes) {
  for (const int axis : axes) {
    const sharding::Step step = {
        .change = sharding::Change::AllReduce, .axis = axis, .from = sharding::Partial{}, .to = {}};
    Journey journey = journey_of(place, step);
    journey.phase = of.phase;
    journey.module = of.module;
    value = send(made, journey,
                 {{.from = value, .to = made.at(value).type, .role = made.at(value).role, .shard = {}}})[0];
  }
  return value;
}

static std::vector<int> axes_that_cut(const Place& place, const std::vector<Layout>& layouts,
                                      std::size_t count) {
  std::vector<int> axes;
  for (int axis = 0; axis < static_cast<int>(place.mesh.axes.size()); ++axis)
    if (place.axis(axis).size > 1)
      for (std::size_t i = 0; i < count; ++i)
        if (cuts(layouts[i], axis)) {
          axes.push_back(axis);
          break;
        }
  return axes;
}

std::vector<ValueId> add_clip(ir::Graph& made, const Place& place, const ir::Node& clip,
                              const std::vector<ValueId>& gradients, const std::vector<Layout>& layouts,
                              const TensorType& type) {
  std::map<std::vector<int>, ir::ValueList> by_axes;  // those that cut the gradient
  for (std::size_t i = 0; i < gradients.size(); ++i)
    by_axes[axes_that_cut(place, {layouts[i]}, 1)].emplace_back(gradients[i]);
  ir::ValueList squares;
  for (const auto& [axes, list] : by_axes) {
    const auto id = made.add_node({.op = "shoal::sum_of_squares",
                                   .arguments = {{"gradients", list}},
                                   .outputs = {},
                                   .phase = clip.phase,
                                   .module = clip.module},
                                  {ir::contiguous(DType::Float64, {})});
    squares.emplace_back(summed(made, place, clip, *made.at(id).outputs[0], axes));
  }
  const auto id = made.add_node(
      {.op = "shoal::clip_by",
       .arguments = {{"squares", squares}, {"max_norm", *ir::find(clip, "max_norm")}, {"dtype", type.dtype}},
       .outputs = {},
       .phase = clip.phase,
       .module = clip.module},
      {type, type});
  return {*made.at(id).outputs[0], *made.at(id).outputs[1]};
}

std::vector<std::optional<ValueId>> add_lamb(ir::Graph& made, const Place& place, ir::Node lamb,
                                             const std::vector<Layout>& in,
                                             const std::vector<std::optional<TensorType>>& types) {
  const std::size_t count = types.size() / 3;  // parameters, first and second moments
  const auto axes = axes_that_cut(place, in, count);
  if (axes.empty()) return made.at(made.add_node(std::move(lamb), types)).outputs;
  std::vector<std::int64_t> adds(count, 1);
  for (const int axis : axes)
    for (std::size_t i = 0; i < count; ++i)
      if (place.coordinate(axis) > 0 && !cuts(in[i], axis)) adds[i] = 0;
  ir::Node moments = lamb;
  moments.op = "shoal::lamb_moments";
  moments.arguments.push_back({"adds", adds});
  auto with_norms = types;
  with_norms.emplace_back(ir::contiguous(DType::Float64, {2 * static_cast<std::int64_t>(count)}));
  const auto first = made.at(made.add_node(std::move(moments), with_norms)).outputs;
  const ValueId norms = summed(made, place, lamb, *first.back(), axes);

  ir::Node step = std::move(lamb);
  step.op = "shoal::lamb_step";
  std::erase_if(step.arguments, [](const auto& argument) { return argument.name == "gradients"; });
  constexpr std::string_view kLists[] = {"parameters", "exp_avgs", "exp_avg_sqs"};
  for (ir::Argument& argument : step.arguments) {
    const auto* list = std::ranges::find(kLists, std::string_view(argument.name));
    if (list == std::end(kLists)) continue;
    const auto begin = first.begin() + (list - kLists) * static_cast<std::ptrdiff_t>(count);
    argument.value = ir::ValueList(begin, begin + static_cast<std::ptrdiff_t>(count));
  }
  step.arguments.push_back({"norms", norms});
  const auto parameters_end = types.begin() + static_cast<std::ptrdiff_t>(count);
  auto outputs = made.at(made.add_node(std::move(step), {types.begin(), parameters_end})).outputs;
  outputs.insert(outputs.end(), first.begin() + static_cast<std::ptrdiff_t>(count), first.end() - 1);
  return outputs;
}

}  // namespace shoal::rewrite
