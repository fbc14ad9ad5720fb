// SPDX-License-Identifier: Apache-2.0
// Keeps what results are made of. Random ops go like others: their numbers depend on their own ordinal alone,
// so the ones that stay draw the same numbers as before.
//
//   dead code
//   %2 : f32[2, 3] = aten::neg(self=%0) @forward             | %2 : f32[2, 3] = aten::exp(self=%0) @forward
//   %3 : f32[2, 3] = shoal::normal(ordinal=0) @forward       | return output "y" %2
//   %4 : f32[2, 3] = aten::mul.Tensor(self=%2, other=%3)     |
//       @forward                                             |
//   %5 : f32[2, 3] = aten::exp(self=%0) @forward             |
//   return output "y" %5                                     |
#include "shoal/rewrite/dead_code.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::ValueId;

namespace {
struct Live {
  std::vector<bool> values;
  std::vector<bool> nodes;
};
}  // namespace

static Live live_parts(const Graph& graph) {
  Live live{std::vector<bool>(graph.values.size()), std::vector<bool>(graph.nodes.size())};
  for (const auto& result : graph.results) live.values[result.value.index] = true;
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    const auto is_read = [&](const auto& output) { return output && live.values[output->index]; };
    if (!node.outputs.empty() && std::ranges::none_of(node.outputs, is_read)) continue;
    live.nodes[i] = true;
    for (const ValueId input : inputs_of(node)) live.values[input.index] = true;
    for (const auto& output : node.outputs)
      if (output) live.values[output->index] = true;
  }
  for (const auto& source : graph.sources)
    if (graph.at(source.value).role != ir::Role::Constant) live.values[source.value.index] = true;
  return live;
}

Graph remove_dead_code(Graph graph, Counts& counts) {
  const Live live = live_parts(graph);
  const auto num_dead = std::ranges::count(live.nodes, false);
  if (num_dead == 0 && std::ranges::count(live.values, false) == 0) return graph;
  if (num_dead > 0) counts["dead code"] += static_cast<int>(num_dead);

  Graph kept;
  kept.form = graph.form;
  std::vector<ValueId> renumbered(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    renumbered[i] = {static_cast<std::uint32_t>(kept.values.size())};
    if (live.values[i]) kept.values.push_back(std::move(graph.values[i]));
  }
  for (auto& source : graph.sources) {
    if (!live.values[source.value.index]) continue;
    source.value = renumbered[source.value.index];
    kept.sources.push_back(std::move(source));
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!live.nodes[i]) continue;
    Node node =
        ir::with_inputs(std::move(graph.nodes[i]), [&](ValueId value) { return renumbered[value.index]; });
    for (auto& output : node.outputs) {
      if (!output) continue;
      output = renumbered[output->index];
      kept.values[output->index].producer = ir::NodeId{static_cast<std::uint32_t>(kept.nodes.size())};
    }
    kept.nodes.push_back(std::move(node));
  }
  for (auto& result : graph.results) {
    result.value = renumbered[result.value.index];
    kept.results.push_back(std::move(result));
  }
  return kept;
}

}  // namespace shoal::rewrite
