// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/rebuild.h"

#include <utility>

#include "shoal/base/error.h"

namespace shoal::ir {

ValueId Mapped::operator()(ValueId old) const {
  const auto& made = mapped_.at(old.index);
  SHOAL_CHECK(made, Internal, "rebuild: nothing stands for %", old.index, ", but it is read");
  return *made;
}

Outputs copy(const Graph& old, const Node& node, const Mapped& in, Graph& made) {
  std::vector<std::optional<TensorType>> types;
  for (const auto& output : node.outputs)
    types.push_back(output ? std::optional(old.at(*output).type) : std::nullopt);
  const NodeId id = made.add_node(with_inputs(node, [&](ValueId value) { return in(value); }), types);
  const Outputs& outputs = made.at(id).outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i]) made.values[outputs[i]->index].role = old.at(*node.outputs[i]).role;
  return outputs;
}

Graph rebuild(const Graph& old, const Change& change) {
  Graph made;
  made.form = old.form;
  made.nodes.reserve(old.nodes.size());
  made.values.reserve(old.values.size());
  Mapped in(old.values.size());
  for (const auto& [value, name, fingerprint] : old.sources)
    in.set(value, made.add_source(old.at(value).role, name, old.at(value).type, fingerprint));
  for (const Node& node : old.nodes) {
    auto outputs = change(made, node, in);
    if (!outputs) outputs = copy(old, node, in, made);
    SHOAL_CHECK(outputs->size() == node.outputs.size(), Internal, "rebuild: ", outputs->size(),
                " values stand for the ", node.outputs.size(), " outputs of ", node.op);
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i]) in.set(*node.outputs[i], (*outputs)[i]);
  }
  for (const auto& [role, name, value] : old.results) made.add_result(role, name, in(value));
  return made;
}

}  // namespace shoal::ir
