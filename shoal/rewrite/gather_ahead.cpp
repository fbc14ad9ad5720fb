// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/gather_ahead.h"

#include <map>
#include <optional>
#include <set>
#include <utility>
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

namespace {

// Gathers that travel together, the first one where it is used.
struct Together {
  std::vector<const ir::Node*> gathers;
  std::int64_t bytes = 0;
  bool is_sent = false;
};

}  // namespace

static std::vector<Together> groups_of(const ir::Graph& graph, std::int64_t limit) {
  std::vector<const ir::Node*> gathers;
  for (const auto& node : graph.nodes)
    if (is_gather(graph, node)) gathers.push_back(&node);
  std::vector<Together> groups;
  std::set<const ir::Node*> gone;
  for (auto first = gathers.begin(); first != gathers.end(); ++first) {
    if (gone.contains(*first)) continue;
    const auto axis = journey_in(**first).axis;
    const auto dtype = graph.at(*(*first)->outputs[0]).type.dtype;
    Together group{.gathers = {*first}, .bytes = bytes_in(**first)[0]};
    for (auto next = first + 1; next != gathers.end() && group.bytes < limit; ++next) {
      if ((*next)->phase != (*first)->phase) break;
      if (gone.contains(*next) || (*next)->stage != (*first)->stage || journey_in(**next).axis != axis ||
          graph.at(*(*next)->outputs[0]).type.dtype != dtype)
        continue;
      const std::int64_t more = bytes_in(**next)[0];
      if (group.bytes + more > limit) break;
      group.bytes += more;
      group.gathers.push_back(*next);
      gone.insert(*next);
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

ir::Graph gather_ahead(const ir::Graph& local, std::int64_t bytes, std::int64_t ahead) {
  auto groups = groups_of(local, bytes);
  std::map<const ir::Node*, std::size_t> group_of;  // by its first gather
  for (std::size_t i = 0; i < groups.size(); ++i) group_of.emplace(groups[i].gathers.front(), i);
  std::map<const ir::Node*, ir::ValueId> made_for;
  return ir::rebuild(
      local, [&](ir::Graph& made, const ir::Node& node, const ir::Mapped& in) -> std::optional<ir::Outputs> {
        const auto send = [&](Together& group) {
          if (std::exchange(group.is_sent, true)) return;
          const auto values = add_joined(local, group.gathers, in, made);
          for (std::size_t i = 0; i < values.size(); ++i) made_for.emplace(group.gathers[i], values[i]);
        };
        if (const auto found = group_of.find(&node); found != group_of.end()) {
          send(groups[found->second]);
          std::int64_t under_way = 0;  // of those that are used later
          for (std::size_t next = found->second + 1; next < groups.size(); ++next) {
            const ir::Node& first = *groups[next].gathers.front();
            under_way += groups[next].bytes;
            if (under_way > ahead || first.phase != node.phase || first.stage != node.stage) break;
            send(groups[next]);
          }
        }
        const auto known = made_for.find(&node);
        if (known == made_for.end()) return std::nullopt;
        return ir::Outputs{known->second};
      });
}

}  // namespace shoal::rewrite
