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
  for (const ir::Node& node : graph.nodes) {
    const auto inputs = ir::inputs_of(node);
    if (inputs.size() != 1 || !gathered.contains(inputs[0])) continue;
    if (!ir::is_view(node.op) && node.op != "aten::_to_copy") continue;
    for (const auto& output : node.outputs)
      if (output) gathered.values[output->index] = true;
  }
  return gathered;
}

}  // namespace shoal::rewrite
