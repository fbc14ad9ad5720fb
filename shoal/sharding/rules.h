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
  bool in_parts = false;  // the node runs as another op, which knows where its part begins: see localized
  friend bool operator==(const Strategy&, const Strategy&) = default;
};

std::string to_text(const Strategy& strategy);  // "S(0), R -> S(0)"

// The ways in which the op runs as it is, on parts of its tensors; the whole one (R, … -> R, …) is left out.
// Empty for an op without a rule. Any factor may be cut with `outer` and `unit` other than 1 as well, on all
// its dims alike; but one that is cut in_parts with `unit` alone.
std::vector<Strategy> strategies(const ir::Graph& graph, const ir::Node& node);
bool has_rule(std::string_view op);

// The arguments in which a node is linear, several together or by themselves: of addmm {self, mat1} and
// {self, mat2}. Summands in all of them make summands of the outputs; where an output is not among `made`, it hangs
// on none of them and stays as it is.
struct Linear {
  std::vector<std::string_view> in;
  std::vector<bool> made;  // by output
};
std::vector<Linear> linear_in(const ir::Node& node);  // empty where there are none, or nothing is known

// A Shard of a value as it is seen through a view to another shape of as many elements; nothing where the
// parts of the view would not be views of the parts.
//
//   [24] S(0, outer=3, unit=4)  ->  [3, 2, 4] S(1)        queries, keys, values; heads; head size
std::optional<Shard> through_view(const Shape& from, const Shape& to, const Shard& shard);

// The node as a rank runs it on its part, with the whole graph's value ids; in and out are the rank's boxes
// of ir::inputs_of(node) and of its outputs. Arguments that say sizes say local ones. A random op is told
// `whole`, the shape that it draws a part of, and `box`, which part: for each dim the number of ranges, then
// their begins and ends; it gets neither where its part is the whole.
//
// in_parts, which holds if the strategy of any axis says so, gives an op that is told `first`, the index at
// which its part of the vocabulary or of the classes begins, and how many there are in the `whole`:
//
//   aten::embedding                 shoal::embedding_part(weight, indices, padding_idx, first, whole)
//   aten::embedding_dense_backward  shoal::embedding_backward_part(grad_output, indices, num_weights,
//                                     padding_idx, first, whole)
//   aten::nll_loss_forward          shoal::nll_loss_part(self, target, reduction, ignore_index, first, whole)
//   aten::nll_loss_backward         shoal::nll_loss_backward_part(grad_output, self, target, reduction,
//                                     ignore_index, total_weight, first, whole)
//
// Such a strategy is offered with outer = 1, and is to be used so: throws InvalidInput where the part of that
// dim is in several pieces.
ir::Node localized(const ir::Graph& graph, const ir::Node& node, const std::vector<Box>& in,
                   const std::vector<std::optional<Box>>& out, bool in_parts);

}  // namespace shoal::sharding
