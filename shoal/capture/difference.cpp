// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/difference.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"

namespace shoal::capture {

static std::string text_of(const ir::Argument& argument) {
  const bool is_value = std::holds_alternative<ir::ValueId>(argument.value) ||
                        std::holds_alternative<ir::ValueList>(argument.value);
  return is_value ? argument.name + " from elsewhere" : ir::to_text(argument);
}

// But for what a check says where it fails: the same step may be called from several lines.
static bool same_arguments(const ir::Node& a, const ir::Node& b) {
  return std::ranges::equal(a.arguments, b.arguments, [&](const ir::Argument& x, const ir::Argument& y) {
    return x == y || (a.op == "shoal::expect" && x.name == "otherwise" && y.name == x.name);
  });
}

// Arguments of `node` that are others in `from`: "other=1".
static std::string other_arguments(const ir::Node& node, const ir::Node& from) {
  std::string text;
  for (std::size_t i = 0; i < node.arguments.size(); ++i)
    if (i >= from.arguments.size() || node.arguments[i] != from.arguments[i])
      text += (text.empty() ? "" : ", ") + text_of(node.arguments[i]);
  return text;
}

static const ir::Source* source_of(const ir::Graph& graph, ir::ValueId value) {
  const auto found = std::ranges::find(graph.sources, value, &ir::Source::value);
  return found == graph.sources.end() ? nullptr : &*found;
}

static bool same_source(const ir::Graph& first, const ir::Graph& second, ir::ValueId value) {
  if (first.at(value).producer) return true;
  const auto *a = source_of(first, value), *b = source_of(second, value);
  return a && b && *a == *b && first.at(value) == second.at(value);
}

static std::optional<std::string> difference_of_node(const ir::Graph& first, const ir::Graph& second,
                                                     std::size_t n, const Occasions& at) {
  const auto name_of = [n](const ir::Graph& graph) {
    return n < graph.nodes.size() ? graph.nodes[n].op : std::string("nothing more");
  };
  const auto name = name_of(first), other_name = name_of(second);
  if (name != other_name)
    return concat("does something else ", at.compared, ": ", name, " ", at.first, ", ", other_name, " ",
                  at.second);
  const auto &a = first.nodes[n], &b = second.nodes[n];
  if (!same_arguments(a, b))
    return concat("calls ", a.op, " with other arguments ", at.compared, " (", other_arguments(a, b), " ",
                  at.first, ", ", other_arguments(b, a), " ", at.second, ")");
  for (const auto input : ir::inputs_of(a))
    if (!same_source(first, second, input))
      return concat("gives ", a.op, " a constant whose content is another ", at.compared,
                    " (a Python or C++ number or tensor that has changed, a counter, or random numbers made "
                    "outside ATen)");
  const bool same_types = std::ranges::equal(a.outputs, b.outputs, [&](const auto& x, const auto& y) {
    return x == y && (!x || first.at(*x).type == second.at(*y).type);
  });
  if (!same_types || a.phase != b.phase) return concat("calls ", a.op, " with other shapes ", at.compared);
  return std::nullopt;
}

std::optional<Difference> difference(const ir::Graph& first, const ir::Graph& second,
                                     const Occasions& occasions) {
  for (std::size_t n = 0; n < std::max(first.nodes.size(), second.nodes.size()); ++n)
    if (auto what = difference_of_node(first, second, n, occasions))
      return Difference{static_cast<std::uint32_t>(n), std::move(*what)};
  if (first.results == second.results && first.sources == second.sources) return std::nullopt;
  return Difference{std::nullopt, concat("returns something else ", occasions.compared)};
}

}  // namespace shoal::capture
