// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/pinned.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/rewrite/candidates.h"

namespace shoal::rewrite {

using ir::Role;
using ir::ValueId;
using sharding::Layout;
using sharding::Shape;

Uses uses_of(const ir::Graph& graph) {
  Uses uses = {.of = std::vector<std::vector<Use>>(graph.values.size()), .leaves = {}};
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto inputs = ir::inputs_of(graph.nodes[i]);
    for (std::size_t j = 0; j < inputs.size(); ++j) uses.of[inputs[j].index].push_back({i, j});
  }
  for (const auto& result : graph.results) uses.leaves.insert(result.value);
  return uses;
}

bool is_number(const ir::Graph& graph, ValueId value) { return graph.at(value).type.shape.empty(); }

namespace {

class Pinning {
 public:
  Pinning(const ir::Graph& graph, const sharding::Mesh& mesh, const Pins& pins, const Uses& uses)
      : graph_(graph), mesh_(mesh), pins_(pins), uses_(uses) {}

  Pinned run() {
    pin_sources();
    pin_results();
    pin_outputs();
    return std::move(pinned_);
  }

 private:
  Layout replicated() const { return sharding::replicated(mesh_); }
  const Shape& shape_of(ValueId value) const { return graph_.at(value).type.shape; }
  Layout of_state(const ParameterPins& pins, ValueId value) const {
    if (is_number(graph_, value)) return replicated();
    const bool is_maxima = !pins.maxima.placements.empty() && graph_.at(value).type.dtype != DType::UInt8;
    return is_maxima ? pins.maxima : pins.updated;
  }

  void check(const Layout& layout, const Shape& shape, std::string_view what, std::string_view name) const {
    const std::string why = misfit(mesh_, layout, shape);
    SHOAL_CHECK(why.empty(), InvalidInput, "place: ", what, " \"", name, "\" cannot be ", to_text(layout),
                ": ", why);
  }

  const ParameterPins* pins_of(const std::string& parameter) const {
    const auto found = pins_.parameters.find(parameter);
    return found == pins_.parameters.end() ? nullptr : &found->second;
  }

  void pin_sources() {
    for (const auto& source : graph_.sources) {
      Layout kept = replicated(), used = replicated();
      const Role role = graph_.at(source.value).role;
      if (role == Role::Parameter) {
        pinned_.parameter_at.emplace(source.value, source.name);
        if (const auto* pins = pins_of(source.name)) {
          kept = pins->kept;
          used = pins->used;
          if (const auto lower = lower_of(source.value); lower && kept != used) {
            for (std::size_t axis = 0; axis < kept.placements.size(); ++axis)
              if (kept.placements[axis] != used.placements[axis])
                pinned_.values[*lower].emplace(axis, used.placements[axis]);
            used = kept;
          }
        }
      } else if (role == Role::OptimizerState) {
        if (const auto* pins = pins_of(source.name.substr(0, source.name.rfind('.'))))
          kept = used = of_state(*pins, source.value);
      } else if (role == Role::Gradient) {
        if (const auto* pins = pins_of(source.name)) kept = used = pins->summed;
      } else if (role == Role::Input) {
        if (const auto pin = pins_.inputs.find(source.name); pin != pins_.inputs.end())
          kept = used = pin->second;
      }
      check(kept, shape_of(source.value), ir::name_of(role), source.name);
      check(used, shape_of(source.value), ir::name_of(role), source.name);
      pinned_.kept.push_back(kept);
      pinned_.used.push_back(used);
    }
  }

  // What a parameter is converted to before all that the model does with it, if that is less to gather.
  std::optional<ValueId> lower_of(ValueId parameter) const {
    std::optional<ValueId> lower;
    for (const Use& use : uses_.of[parameter.index]) {
      const ir::Node& node = graph_.nodes[use.node];
      if (node.phase == ir::Phase::Update) continue;
      if (node.op != "aten::_to_copy" || lower) return std::nullopt;
      lower = node.outputs[0];
    }
    const auto bytes = [&](ValueId value) { return ir::bytes_of(graph_.at(value).type); };
    return lower && bytes(*lower) < bytes(parameter) ? lower : std::nullopt;
  }

  void pin_results() {
    std::set<ValueId> read_before_update;
    for (const auto& node : graph_.nodes)
      if (node.phase != ir::Phase::Update && node.op != "shoal::clip")
        for (const ValueId input : ir::inputs_of(node)) read_before_update.insert(input);
    for (const auto& [role, name, value] : graph_.results) {
      Layout layout = replicated();
      const auto* pins =
          role == Role::OptimizerState ? pins_of(name.substr(0, name.rfind('.'))) : pins_of(name);
      if (role == Role::OptimizerState && pins != nullptr) layout = of_state(*pins, value);
      if (role == Role::Parameter && pins != nullptr) layout = pins->kept;
      if (role == Role::Gradient && pins != nullptr) {
        layout = pins->gradient;
        // Reduced as soon as it is there, unless backward goes on with it.
        if (graph_.at(value).producer && !read_before_update.contains(value))
          for (std::size_t axis = 0; axis < layout.placements.size(); ++axis)
            pinned_.values[value].emplace(axis, layout.placements[axis]);
      }
      check(layout, shape_of(value), ir::name_of(role), name);
      pinned_.results.push_back(layout);
    }
  }

  // The last value of each module that a pin names, as seen from outside of it.
  void pin_outputs() {
    for (const auto& pin : pins_.outputs) {
      std::map<std::string, ValueId> last;
      std::set<std::string> left;  // what uses a module's weight later on is not its output: a tied embedding
      for (const auto& node : graph_.nodes) {
        if (node.phase != ir::Phase::Forward || node.outputs.empty() || !node.outputs[0]) continue;
        for (const auto& [path, value] : last)
          if (!is_within(node.module, path)) left.insert(path);
        for (std::string_view path = node.module;; path = path.substr(0, path.rfind('.'))) {
          if (matches(pin.module, path) && !left.contains(std::string(path)))
            last.insert_or_assign(std::string(path), *node.outputs[0]);
          if (path.find('.') == std::string_view::npos) break;
        }
      }
      SHOAL_CHECK(!last.empty(), InvalidInput, "place: no module is called \"", pin.module, "\"");
      for (const auto& [path, made] : last) {
        const ValueId value = handed_out(made, path);
        find_gradients(path, value);
        for (const auto& [axis, placement] : pin.placements) {
          Layout alone = replicated();
          alone.placements[axis] = placement;
          check(alone, shape_of(value), "the output of module", path);
          const auto [known, is_new] = pinned_.values[value].try_emplace(axis, placement);
          SHOAL_CHECK(is_new || known->second == placement, InvalidInput, "place: the output of module \"",
                      path, "\" is pinned to ", to_text(known->second), " and to ", to_text(placement),
                      " on axis ", mesh_.axes[axis].name, "; leave one of them out");
        }
      }
    }
  }

  // Clean-ups leave a module's last view to whoever reads it: the pin is on what they read.
  ValueId handed_out(ValueId value, std::string_view path) const {
    while (uses_.of[value.index].size() == 1 && !uses_.leaves.contains(value)) {
      const ir::Node& reader = graph_.nodes[uses_.of[value.index][0].node];
      if (!is_reshape(reader.op) || is_within(reader.module, path)) break;
      value = *reader.outputs[0];
    }
    return value;
  }

  static bool is_within(std::string_view module, std::string_view path) {
    return module.starts_with(path) &&
           (module.size() == path.size() || path.empty() || module[path.size()] == '.');
  }

  // The gradient of a module's output: what its part of backward reads that another module's part has made.
  void find_gradients(const std::string& path, ValueId output) {
    auto& found = pinned_.gradients_of[output];
    for (const auto& node : graph_.nodes) {
      if (node.phase != ir::Phase::Backward || !is_within(node.module, path)) continue;
      for (const ValueId input : ir::inputs_of(node)) {
        const auto& producer = graph_.at(input).producer;
        if (!producer || graph_.at(*producer).phase != ir::Phase::Backward) continue;
        if (is_within(graph_.at(*producer).module, path)) continue;
        if (ir::num_elements(graph_.at(input).type) != ir::num_elements(graph_.at(output).type)) continue;
        if (std::ranges::find(found, input) == found.end()) found.push_back(input);
      }
    }
  }

  const ir::Graph& graph_;
  const sharding::Mesh& mesh_;
  const Pins& pins_;
  const Uses& uses_;
  Pinned pinned_;
};

}  // namespace

Pinned pinned_of(const ir::Graph& graph, const sharding::Mesh& mesh, const Pins& pins, const Uses& uses) {
  return Pinning(graph, mesh, pins, uses).run();
}

}  // namespace shoal::rewrite
