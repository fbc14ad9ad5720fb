// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/raised.h"

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Argument;
using ir::Graph;
using ir::Mapped;
using ir::Node;
using ir::Outputs;
using ir::Role;
using ir::TensorType;
using ir::ValueId;

namespace {

class Raised {
 public:
  explicit Raised(const Graph& graph) : graph_(graph), keeps_type_(graph.values.size()) {
    for (const auto& result : graph.results)
      if (keeps_type(result.role)) keeps_type_[result.value.index] = is_low(result.value);
  }

  Graph run() {
    Graph made = ir::rebuild(graph_, [&](Graph& out, const Node& node, const Mapped& in) {
      made_ = &out;
      return written(node, in);
    });
    for (std::size_t i = 0; i < made.results.size(); ++i) {
      const auto& result = graph_.results[i];
      const auto low = results_.find(result.value.index);
      if (low != results_.end() && keeps_type(result.role)) made.results[i].value = low->second;
    }
    return made;
  }

 private:
  static bool keeps_type(Role role) { return role != Role::Loss && role != Role::Gradient; }
  bool is_low(ValueId old) const { return graph_.at(old).type.dtype == DType::BFloat16; }

  std::optional<Outputs> written(const Node& node, const Mapped& in) {
    Node now = node;
    bool changes = false;
    const bool looks_up = node.op == "aten::embedding" && !made_->at(in(ir::inputs_of(node)[0])).producer;
    const auto read = [&](ValueId& value) {
      changes = changes || is_low(value);
      value = looks_up ? in(value) : whole(in(value), node);
    };
    for (Argument& argument : now.arguments) {
      if (auto* value = std::get_if<ValueId>(&argument.value)) read(*value);
      if (auto* list = std::get_if<ir::ValueList>(&argument.value))
        for (auto& value : *list)
          if (value) read(*value);
      if (auto* dtype = std::get_if<DType>(&argument.value); dtype != nullptr && *dtype == DType::BFloat16) {
        *dtype = DType::Float32;
        changes = true;
      }
    }
    std::vector<std::optional<TensorType>> types;
    for (const auto& output : node.outputs) {
      types.push_back(output ? std::optional(graph_.at(*output).type) : std::nullopt);
      if (!output || !is_low(*output)) continue;
      changes = true;
      if (!looks_up) types.back()->dtype = DType::Float32;
    }
    if (!changes) return std::nullopt;
    for (Argument& argument : now.arguments)
      if (argument.name == "half_to_float") argument.value = false;  // it is float already
    Outputs outputs;
    if (const auto same = converts_nothing(now, types))
      outputs = {same};
    else
      outputs = made_->at(made_->add_node(std::move(now), types)).outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i] || !node.outputs[i]) continue;
      const ValueId old = *node.outputs[i];
      if (made_->at(*outputs[i]).producer) made_->values[outputs[i]->index].role = graph_.at(old).role;
      if (keeps_type_[old.index])
        results_.emplace(old.index, Writer(*made_, node).converted(*outputs[i], DType::BFloat16));
      outputs[i] = whole(*outputs[i], node);
    }
    return outputs;
  }

  // What a conversion reads, where it is what it makes.
  std::optional<ValueId> converts_nothing(const Node& now,
                                          const std::vector<std::optional<TensorType>>& types) const {
    if (now.op != "aten::_to_copy") return std::nullopt;
    const ValueId read = ir::inputs_of(now)[0];
    return made_->at(read).type == *types[0] ? std::optional(read) : std::nullopt;
  }

  // Once for all that read it.
  ValueId whole(ValueId made, const Node& reader) {
    if (made_->at(made).type.dtype != DType::BFloat16) return made;
    const auto [known, is_new] = wholes_.try_emplace(made.index, made);
    if (is_new) known->second = Writer(*made_, reader).converted(made, DType::Float32);
    return known->second;
  }

  const Graph& graph_;
  Graph* made_ = nullptr;
  std::vector<bool> keeps_type_;              // by old ValueId
  std::map<std::uint32_t, ValueId> results_;  // by old ValueId
  std::map<std::uint32_t, ValueId> wholes_;   // by new ValueId
};

}  // namespace

Graph raised(const Graph& graph) { return Raised(graph).run(); }

}  // namespace shoal::rewrite
