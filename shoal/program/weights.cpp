// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/weights.h"

#include <algorithm>
#include <cstddef>

namespace shoal::program {

using ir::Node;

std::vector<bool> find_weights_alone(const ir::Graph& graph, const std::vector<const Node*>& backward,
                                     const std::set<int>& stages) {
  std::vector<bool> is_awaited(graph.values.size());
  std::vector<std::set<int>> readers(graph.values.size());  // stages
  for (const auto& result : graph.results)
    if (result.role != ir::Role::Gradient) is_awaited[result.value.index] = true;
  for (const auto& node : graph.nodes)
    for (const auto input : inputs_of(node)) readers[input.index].insert(node.stage);
  std::vector<bool> is_alone(backward.size());
  for (std::size_t at = backward.size(); at-- > 0;) {
    const Node& node = *backward[at];
    const auto is_of_another = [&](int stage) { return stage != node.stage; };
    const auto goes_out = [&](const auto& output) {
      return output &&
             (is_awaited[output->index] || std::ranges::any_of(readers[output->index], is_of_another));
    };
    // What has no outputs is sent.
    is_alone[at] =
        !node.outputs.empty() && stages.contains(node.stage) && std::ranges::none_of(node.outputs, goes_out);
    if (is_alone[at]) continue;
    for (const auto input : inputs_of(node)) is_awaited[input.index] = true;
  }
  return is_alone;
}

}  // namespace shoal::program
