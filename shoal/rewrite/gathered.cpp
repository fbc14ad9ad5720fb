// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/gathered.h"

#include "shoal/ir/views.h"

namespace shoal::rewrite {

using ir::ValueId;

Gathered gathered_of(const Placed& placed) {
  const ir::Graph& graph = placed.graph;
  Gathered gathered = {.values = std::vector<bool>(graph.values.size())};
  for (std::size_t i = 0; i < graph.sources.size(); ++i) {
    const ValueId value = graph.sources[i].value;
    gathered.values[value.index] =
        graph.at(value).role == ir::Role::Parameter && placed.kept[i] != placed.values[value.index];
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    const auto inputs = ir::inputs_of(node);
    const bool converts = node.op == "aten::_to_copy";
    if (inputs.size() != 1 || (!ir::is_view(node.op) && !converts)) continue;
    // Converted in parts, and then gathered.
    const bool arrives = converts && graph.at(inputs[0]).role == ir::Role::Parameter &&
                         placed.nodes[i].out[0] != placed.values[node.outputs[0]->index];
    if (!arrives && !gathered.contains(inputs[0])) continue;
    for (const auto& output : node.outputs)
      if (output) gathered.values[output->index] = true;
  }
  return gathered;
}

}  // namespace shoal::rewrite
