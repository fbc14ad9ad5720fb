// SPDX-License-Identifier: Apache-2.0
// The whole-graph rewrite: copies a graph node by node, with a change on the way.
//
//   return ir::rebuild(
//       graph, [&](Graph& made, const Node& node, const Mapped& in) -> std::optional<Outputs> {
//         if (node.op != "aten::t") return std::nullopt;           // copied as it is
//         return Outputs{made.at(made.add_node(…, {…})).outputs};  // or something else stands for it
//       });
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::ir {

using Outputs = std::vector<std::optional<ValueId>>;

// From values of the old graph to those that stand for them in the new one.
class Mapped {
 public:
  explicit Mapped(std::size_t num_values) : mapped_(num_values) {}
  // Throws Internal if nothing stands for the value.
  ValueId operator()(ValueId old) const;
  void set(ValueId old, std::optional<ValueId> made) { mapped_.at(old.index) = made; }

 private:
  Outputs mapped_;
};

// Sees each node of the old graph in order and may add nodes and sources to the new one. Returns what stands
// for the node's outputs, one for each, nullopt where nothing reads it; or nullopt, and the node is copied.
using Change = std::function<std::optional<Outputs>(Graph& made, const Node& node, const Mapped& in)>;

// Sources keep their order and results follow the mapping. Throws Internal if something is read that was
// dropped.
Graph rebuild(const Graph& old, const Change& change);

// Copies a node of the old graph to the end of the new one, types and roles of its outputs included.
Outputs copy(const Graph& old, const Node& node, const Mapped& in, Graph& made);

}  // namespace shoal::ir
