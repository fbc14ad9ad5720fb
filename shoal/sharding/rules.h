// SPDX-License-Identifier: Apache-2.0
// What an op means for splitting. Its rule (ops.cpp) names the dims of its tensors: "mk, kn -> mn" says that
// a matrix product may be cut along m and n, each rank making its part of the result, and along k, each rank
// making a summand of it. The rules know nothing of models, meshes or costs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/sharding/layout.h"

namespace shoal::sharding {

// One way to cut a node: what each tensor that it reads and makes is on one axis of the mesh.
struct Strategy {
  std::vector<Placement> in;   // as ir::inputs_of(node)
  std::vector<Placement> out;  // by output; an undefined output is Replicate
  bool may_be_empty =
      true;  // whether the op runs on parts of no elements; if not, there are no more ranks than units
  friend bool operator==(const Strategy&, const Strategy&) = default;
};

std::string to_text(const Strategy& strategy);  // "S(0), R -> S(0)"

// The ways in which the op runs as it is, on parts of its tensors; the whole one (R, … -> R, …) is left out.
// Empty for an op without a rule. Any factor may be cut with `outer` and `unit` other than 1 as well, on all
// its dims alike.
std::vector<Strategy> strategies(const ir::Graph& graph, const ir::Node& node);
bool has_rule(std::string_view op);

// A Shard of a value as it is seen through a view to another shape of as many elements; nothing where the
// parts of the view would not be views of the parts.
//
//   [24] S(0, outer=3, unit=4)  ->  [3, 2, 4] S(1)        queries, keys, values; heads; head size
std::optional<Shard> through_view(const Shape& from, const Shape& to, const Shard& shard);

// The node as a rank runs it on its part: arguments that say sizes say those of its first output there.
ir::Node localized(ir::Node node, const Shape& local_output);

}  // namespace shoal::sharding
