// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/marks.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace shoal::capture {

void Marks::add_parameter(ir::ValueId value, const at::Tensor& tensor) {
  const Parameter made{scope_of(Scope::Kind::Replicate, tensor), scope_of(Scope::Kind::Split, tensor)};
  is_any_made_ = is_any_made_ || made.stage || made.split;
  parameters_.emplace(value, made);
}

// A scope around the call says more than one around what made a parameter; a module that is called again later, as tied
// layers are, runs where it is called.
void Marks::add_node(ir::NodeId id, const ir::Node& node, const std::function<std::string()>& where) {
  std::optional<Entered> stage = scope_of(Scope::Kind::Replicate);
  const std::optional<Entered> split = scope_of(Scope::Kind::Split);
  const bool is_called = stage.has_value();
  if (!split && !is_any_made_) return begin(stage, id, where);
  for (const ir::ValueId input : ir::inputs_of(node)) {
    const auto parameter = parameters_.find(input);
    if (parameter == parameters_.end()) continue;
    if (!is_called && parameter->second.stage) stage = parameter->second.stage;
    add_split(split ? split : parameter->second.split, input, where);
  }
  begin(stage, id, where);
}

void Marks::begin(const std::optional<Entered>& stage, ir::NodeId id,
                  const std::function<std::string()>& where) {
  if (!stage || !begun_.insert(stage->number).second) return;
  scopes_.stages.push_back({.devices = stage->devices, .where = where()});
  begins_.push_back(id);
}

void Marks::add_split(const std::optional<Entered>& entered, ir::ValueId parameter,
                      const std::function<std::string()>& where) {
  if (!entered) return;
  auto found = splits_.find(entered->number);
  if (found == splits_.end())
    found =
        splits_.emplace(entered->number, Split{{.devices = entered->devices, .where = where()}, {}}).first;
  auto& known = found->second.parameters;
  if (std::ranges::find(known, parameter) == known.end()) known.push_back(parameter);
}

ir::Scopes Marks::finish(ir::Graph& graph) && {
  for (std::size_t i = 0, stage = 0; i < graph.nodes.size() && !begins_.empty(); ++i) {
    while (stage + 1 < begins_.size() && begins_[stage + 1].index <= i) ++stage;
    if (graph.nodes[i].phase == ir::Phase::Forward) graph.nodes[i].stage = static_cast<int>(stage);
  }
  for (auto& [number, split] : splits_) {
    ir::Scopes::Split made{std::move(split.scope), {}};
    for (const auto& source : graph.sources)
      if (std::ranges::find(split.parameters, source.value) != split.parameters.end())
        made.parameters.push_back(source.name);
    scopes_.splits.push_back(std::move(made));
  }
  return std::move(scopes_);
}

}  // namespace shoal::capture
