// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/offload.h"

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

#include "shoal/ir/own_ops.h"
#include "shoal/ir/rebuild.h"
#include "shoal/ir/views.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::Phase;
using ir::Role;
using ir::ValueId;

bool Offload::has(Role role, const ir::TensorType& type) const {
  if (ir::bytes_of(type) < least) return false;
  return (role == Role::Parameter && parameters) || (role == Role::OptimizerState && optimizer_state) ||
         (role == Role::Gradient && gradients);
}

// By value: what is written after it was made, and what such a write leaves: sums, tensors that parts are put
// into.
static std::vector<bool> written_in(const Graph& graph, const std::vector<ValueId>& owners) {
  std::vector<bool> written(graph.values.size());
  for (const Node& node : graph.nodes) {
    const ir::OwnOp* own = ir::find_own_op(node.op);
    if (own == nullptr || own->writes[0].empty()) continue;
    for (const auto& output : node.outputs)
      if (output) written[output->index] = true;
    for (const auto name : own->writes)
      for (const auto& argument : node.arguments) {
        if (argument.name != name) continue;
        if (const auto* list = std::get_if<ir::ValueList>(&argument.value))
          for (const auto& value : *list)
            if (value) written[owners[value->index].index] = true;
      }
  }
  return written;
}

// By value: a copy of it is to lie in the file, and all others read that.
static std::vector<bool> offloaded_in(const Graph& graph, const Offload& offload) {
  const auto owners = ir::memory_owners(graph);
  const auto written = written_in(graph, owners);
  std::vector<bool> all(graph.values.size());
  const auto is_large = [&](ValueId value) { return ir::bytes_of(graph.at(value).type) >= offload.least; };
  const auto made_in = [&](ValueId value, Phase phase) {
    const auto& producer = graph.at(value).producer;
    return producer && graph.at(*producer).phase == phase;
  };
  if (offload.activations)
    for (const Node& node : graph.nodes) {
      if (node.phase != Phase::Backward) continue;
      for (const ValueId input : ir::inputs_of(node)) {
        const ValueId owner = owners[input.index];
        all[owner.index] = made_in(owner, Phase::Forward) && is_large(owner) && !written[owner.index];
      }
    }
  for (const auto& result : graph.results) {
    const ValueId owner = owners[result.value.index];
    // What is handed out is not kept for backward alone.
    if (result.role != Role::Gradient) {
      all[owner.index] = false;
      continue;
    }
    const bool is_made = graph.at(owner).producer && !written[owner.index];
    if (offload.gradients && is_made && is_large(result.value)) all[result.value.index] = true;
  }
  return all;
}

Graph offload(const Graph& local, const Offload& offload) {
  if (!offload.activations && !offload.gradients) return local;
  const auto offloaded = offloaded_in(local, offload);
  return ir::rebuild(
      local, [&](Graph& made, const Node& node, const ir::Mapped& in) -> std::optional<ir::Outputs> {
        const auto goes = [&](const auto& output) { return output && offloaded[output->index]; };
        if (std::ranges::none_of(node.outputs, goes)) return std::nullopt;
        ir::Outputs outputs = ir::copy(local, node, in, made);
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          if (!goes(node.outputs[i])) continue;
          Node to_file = {
              .op = "shoal::to_file", .phase = node.phase, .module = node.module, .stage = node.stage};
          to_file.arguments = {{"self", *outputs[i]}};
          const auto& type = local.at(*node.outputs[i]).type;
          outputs[i] = made.at(made.add_node(std::move(to_file), {type})).outputs[0];
        }
        return outputs;
      });
}

}  // namespace shoal::rewrite
