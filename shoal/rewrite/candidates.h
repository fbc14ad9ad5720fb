// SPDX-License-Identifier: Apache-2.0
// The ways in which a node can run on one axis of the mesh: pure functions of the node, the axis, how its inputs
// lie there, and what axes further in have cut already.
//
//   %y = mm(%x, %w)              S(0), R -> S(0)         rows of the batch
//                                R, S(1) -> S(1)         columns of the weight
//                                S(1), S(0) -> P(sum)    what both share
//   %v = view(%x, [6, 4])        S(0) of [2, 3, 4] -> S(0, unit=3): found by the cut, in no list
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/place.h"
#include "shoal/sharding/rules.h"

namespace shoal::rewrite {

inline bool is_cut(const sharding::Placement& placement) {
  return std::holds_alternative<sharding::Shard>(placement);
}
bool is_reshape(std::string_view op);

// As `choice` says on that axis.
void set(std::size_t axis, const Choice& choice, PlacedNode& placed);

class Candidates {
 public:
  // Borrows both.
  Candidates(const ir::Graph& graph, const sharding::Mesh& mesh) : graph_(graph), mesh_(mesh) {}

  // The rule's strategies, cut as the inputs are cut, with their outer and unit, and what views can. `seen`:
  // how the inputs lie on the axis; `placed`: what axes further in have said.
  std::vector<Choice> choices(const ir::Node& node, std::size_t axis,
                              const std::vector<sharding::Placement>& seen, const PlacedNode& placed) const;
  // Those that make an output as it is wanted, if they can; and others.
  std::vector<Choice> choices_making(const ir::Node& node, std::size_t axis, const sharding::Shard& wanted,
                                     const PlacedNode& placed) const;
  // Whether the choice goes together with what the axes further in do.
  bool fits(const Choice& choice, const ir::Node& node, std::size_t axis, PlacedNode placed) const;
  // How a view's output is cut where its input is, or, backwards, the other way round: as axes further in have
  // cut both sides already, the view is one of what they left; the same on every rank.
  std::optional<sharding::Shard> seen_through(const ir::Node& node, std::size_t axis,
                                              const sharding::Shard& shard, const PlacedNode& placed,
                                              bool backwards = false) const;
  static bool is_cut_further_out(const PlacedNode& placed, std::size_t axis);

 private:
  sharding::Layout replicated() const { return sharding::replicated(mesh_); }
  const sharding::Shape& shape_of(ir::ValueId value) const { return graph_.at(value).type.shape; }

  const std::vector<sharding::Strategy>& strategies_of(const ir::Node& node) const;
  void add_through_view(const ir::Node& node, std::size_t axis, const std::vector<sharding::Placement>& seen,
                        const PlacedNode& placed, std::vector<Choice>& found) const;
  void add_blocks(const ir::Node& node, const std::vector<sharding::Placement>& seen,
                  std::vector<Choice>& found, bool backwards = false) const;
  sharding::Layout further_in(const sharding::Layout& layout, std::size_t axis) const;
  bool is_cut_further_in(const PlacedNode& placed, std::size_t axis) const;
  sharding::Shard coarsest(sharding::Shard shard, const sharding::Shape& shape, std::size_t axis) const;
  bool is_nowhere_empty(const sharding::Layout& layout, const sharding::Shape& shape) const;

  const ir::Graph& graph_;
  const sharding::Mesh& mesh_;
  mutable std::map<const ir::Node*, std::vector<sharding::Strategy>> strategies_;
};

}  // namespace shoal::rewrite
