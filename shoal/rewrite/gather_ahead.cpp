// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/gather_ahead.h"

#include <map>
#include <set>
#include <vector>

#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/transfer.h"

namespace shoal::rewrite {

// One parameter, gathered for use.
static bool is_gather(const ir::Graph& graph, const ir::Node& node) {
  if (!is_transfer(node) || node.outputs.size() != 1) return false;
  const Parcel parcel = parcels_in(graph, node)[0];
  const auto& from = graph.at(parcel.from);
  return journey_in(node).kind == sharding::Collective::AllGather && !parcel.over && !from.producer &&
         from.role == ir::Role::Parameter;
}

// Which gathers travel with each, itself included; those that travel with an earlier one have none.
static std::map<const ir::Node*, std::vector<const ir::Node*>> groups_of(const ir::Graph& graph,
                                                                         std::int64_t limit) {
  std::vector<const ir::Node*> gathers;
  for (const auto& node : graph.nodes)
    if (is_gather(graph, node)) gathers.push_back(&node);
  std::map<const ir::Node*, std::vector<const ir::Node*>> groups;
  std::set<const ir::Node*> gone;
  for (auto first = gathers.begin(); first != gathers.end(); ++first) {
    if (gone.contains(*first)) continue;
    const auto axis = journey_in(**first).axis;
    const auto dtype = graph.at(*(*first)->outputs[0]).type.dtype;
    auto& group = groups[*first] = {*first};
    std::int64_t bytes = bytes_in(**first)[0];
    for (auto next = first + 1; next != gathers.end() && bytes < limit; ++next) {
      if ((*next)->phase != (*first)->phase) break;
      if (gone.contains(*next) || (*next)->stage != (*first)->stage || journey_in(**next).axis != axis ||
          graph.at(*(*next)->outputs[0]).type.dtype != dtype)
        continue;
      const std::int64_t more = bytes_in(**next)[0];
      if (bytes + more > limit) break;
      bytes += more;
      group.push_back(*next);
      gone.insert(*next);
    }
  }
  return groups;
}

ir::Graph gather_ahead(const ir::Graph& local, std::int64_t bytes) {
  const auto groups = groups_of(local, bytes);
  std::map<const ir::Node*, ir::ValueId> made_for;
  return ir::rebuild(
      local, [&](ir::Graph& made, const ir::Node& node, const ir::Mapped& in) -> std::optional<ir::Outputs> {
        if (const auto known = made_for.find(&node); known != made_for.end())
          return ir::Outputs{known->second};
        const auto group = groups.find(&node);
        if (group == groups.end() || group->second.size() == 1) return std::nullopt;
        const auto values = add_joined(local, group->second, in, made);
        for (std::size_t i = 0; i < values.size(); ++i) made_for.emplace(group->second[i], values[i]);
        return ir::Outputs{values[0]};
      });
}

}  // namespace shoal::rewrite
