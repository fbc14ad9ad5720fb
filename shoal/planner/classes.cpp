// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/classes.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/ir/views.h"
#include "shoal/rewrite/place.h"

namespace shoal::planner {

bool is_update(const ir::Node& node) { return node.op == "shoal::clip" || node.phase == ir::Phase::Update; }

static std::string text_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += concat(number, ',');
  return text;
}

// What an argument says; nothing of the values that are read, and of which draw this is.
static std::string text_of(const ir::Argument& argument) {
  if (argument.name == "ordinal") return "";
  if (const auto* number = std::get_if<std::int64_t>(&argument.value)) return concat(*number);
  if (const auto* truth = std::get_if<bool>(&argument.value)) return *truth ? "true" : "false";
  if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&argument.value)) return text_of(*numbers);
  if (const auto* list = std::get_if<ir::ValueList>(&argument.value)) {
    std::string text;
    for (const auto& value : *list) text += value ? 'v' : '-';
    return text;
  }
  return std::holds_alternative<std::monostate>(argument.value) ? "none" : "";
}

// What of each node is the same in those alike; empty for those of an update.
static std::vector<std::string> kinds_of(const ir::Graph& graph, const std::vector<std::string>& types) {
  std::vector<std::string> kinds;
  for (const ir::Node& node : graph.nodes) {
    std::string& kind = kinds.emplace_back();
    if (is_update(node)) continue;
    kind = concat(node.op, ' ', ir::name_of(node.phase), ' ', rewrite::folded(node.module));
    for (const ir::Argument& argument : node.arguments) kind += concat(" ", text_of(argument));
    for (const ir::ValueId input : ir::inputs_of(node)) kind += concat(' ', types[input.index]);
    for (const auto& output : node.outputs) kind += concat(" -> ", output ? types[output->index] : "none");
  }
  return kinds;
}

// A loop over time, or a module that is called again, reads its weights once in each round.
static std::map<std::string, int> rounds_of(const ir::Graph& graph, const std::vector<std::string>& kinds) {
  std::vector<bool> is_weight(graph.values.size());
  for (const auto& source : graph.sources)
    is_weight[source.value.index] = graph.at(source.value).role == ir::Role::Parameter;
  std::map<std::pair<std::string, std::uint32_t>, int> reads;  // by kind and weight
  std::map<std::string, int> rounds;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    if (kinds[i].empty()) continue;
    const auto inputs = ir::inputs_of(node);
    const bool passes = inputs.size() == 1 && is_weight[inputs[0].index] &&
                        (ir::is_view(node.op) || node.op == "aten::_to_copy");
    for (const auto& output : node.outputs)
      if (output && passes) is_weight[output->index] = true;
    for (const ir::ValueId input : inputs)
      if (is_weight[input.index])
        rounds[node.module] =
            std::max(rounds[node.module], ++reads[{concat(node.module, ' ', kinds[i]), input.index}]);
  }
  return rounds;
}

Classes classes_of(const ir::Graph& graph, const std::vector<std::string>& marks, bool folds) {
  Classes classes = {.nodes = {},
                     .values = {},
                     .of_node = std::vector<std::size_t>(graph.nodes.size(), kNone),
                     .of_value = std::vector<std::size_t>(graph.values.size(), kNone)};
  const auto type_of = [&](ir::ValueId value) {
    return concat(ir::to_text(graph.at(value).type), marks[value.index]);
  };
  std::map<std::string, std::size_t> sources;
  for (const auto& source : graph.sources) {
    const ir::Role role = graph.at(source.value).role;
    const bool may_fold = folds && role != ir::Role::Input;
    const std::string key =
        concat(ir::name_of(role), ' ', may_fold ? rewrite::folded(source.name) : source.name, ' ',
               type_of(source.value));
    const auto [known, is_new] = sources.try_emplace(key, classes.values.size());
    if (is_new) classes.values.push_back({.first = source.value});
    ++classes.values[known->second].count;
    classes.of_value[source.value.index] = known->second;
  }
  std::vector<std::string> types;
  for (std::uint32_t value = 0; value < graph.values.size(); ++value)
    types.push_back(type_of(ir::ValueId{value}));
  const std::vector<std::string> kinds = kinds_of(graph, types);
  auto rounds = rounds_of(graph, kinds);
  std::map<std::pair<std::string, std::string>, int> all, met;  // of that kind in the module itself
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) ++all[{graph.nodes[i].module, kinds[i]}];
  std::map<std::string, std::size_t> nodes;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    if (kinds[i].empty()) continue;
    const std::pair like = {node.module, kinds[i]};
    const int often = std::max(rounds[node.module], 1), in_a_round = (all[like] + often - 1) / often;
    const std::string kind =
        concat(kinds[i], " #", folds ? static_cast<std::size_t>(met[like]++ % in_a_round) : i);
    const auto [known, is_new] = nodes.try_emplace(kind, classes.nodes.size());
    const std::size_t index = known->second;
    if (is_new) classes.nodes.push_back({.first = i});
    ++classes.nodes[index].count;
    classes.of_node[i] = index;
    const ir::Node& first = graph.nodes[classes.nodes[index].first];
    for (std::size_t j = 0; j < node.outputs.size(); ++j) {
      if (!node.outputs[j]) continue;
      std::size_t& of = classes.of_value[node.outputs[j]->index];
      if (is_new) {
        of = classes.values.size();
        classes.values.push_back({.first = *node.outputs[j], .count = 0, .node = index, .output = j});
      } else {
        of = classes.of_value[first.outputs[j]->index];
      }
      ++classes.values[of].count;
    }
  }
  return classes;
}

}  // namespace shoal::planner
