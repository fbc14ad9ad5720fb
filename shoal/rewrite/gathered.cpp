// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/gathered.h"

#include <algorithm>
#include <map>

#include "shoal/ir/views.h"

namespace shoal::rewrite {

using ir::ValueId;

Gathered gathered_of(const Placed& placed) {
  const ir::Graph& graph = placed.graph;
  Gathered gathered = {.values = std::vector<bool>(graph.values.size()), .first_uses = {}};
  std::map<ValueId, ValueId> roots;  // from a view to the parameter
  for (std::size_t i = 0; i < graph.sources.size(); ++i) {
    const ValueId value = graph.sources[i].value;
    gathered.values[value.index] =
        graph.at(value).role == ir::Role::Parameter && placed.kept[i] != placed.values[value.index];
    roots.emplace(value, value);
  }
  for (const ir::Node& node : graph.nodes) {
    const auto inputs = ir::inputs_of(node);
    if (inputs.size() != 1 || !gathered.contains(inputs[0])) continue;
    if (!ir::is_view(node.op) && node.op != "aten::_to_copy") continue;
    for (const auto& output : node.outputs) {
      if (!output) continue;
      gathered.values[output->index] = true;
      roots.emplace(*output, roots.at(inputs[0]));
    }
  }
  for (const ir::Node& node : graph.nodes) {
    if (node.phase == ir::Phase::Update) continue;
    auto& order = gathered.first_uses[node.phase == ir::Phase::Forward ? 0 : 1];
    for (const ValueId input : ir::inputs_of(node)) {
      if (!gathered.contains(input)) continue;
      const ValueId source = roots.at(input);
      if (std::ranges::find(order, source) == order.end()) order.push_back(source);
    }
  }
  return gathered;
}

}  // namespace shoal::rewrite
