// SPDX-License-Identifier: Apache-2.0
// Local rewrites as data: a pattern over a few nodes, what stands in their place, and a guard.
//
//   {"view of a view",
//    "aten::view(self=aten::view(self=x), size=size)", "aten::view(self=x, size=size)", guard}
//
// In a pattern a lower-case word is bound to the whole argument that stands there; a|b(…) is an output of
// either op; arguments that are not mentioned may be anything. A replacement is a bound value or one op over
// bound arguments.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// One place where a pattern fits. Borrows from graph and rule; lives while a guard looks at it.
class Match {
 public:
  Match(const ir::Graph& graph, const ir::Node& root) : graph_(graph), root_(root) {}

  const ir::Graph& graph() const { return graph_; }
  const ir::Node& root() const { return root_; }
  const ir::TensorType& type() const { return graph_.at(*root_.outputs[0]).type; }  // of the root's output
  const ir::Attribute& operator[](std::string_view name) const;  // none, if the node lacks the argument
  const ir::TensorType& type_of(std::string_view name) const;    // of the value bound to a name
  void bind(std::string_view name, const ir::Attribute& attribute) { bound_.emplace_back(name, &attribute); }

 private:
  const ir::Graph& graph_;
  const ir::Node& root_;
  std::vector<std::pair<std::string_view, const ir::Attribute*>> bound_;
};

struct Rule {
  std::string_view name;
  std::string_view pattern;  // the root has one output
  std::string_view replacement;
  bool (*guard)(const Match&) = nullptr;  // null: applies wherever the pattern fits
};

using Counts = std::map<std::string, int, std::less<>>;  // how often each rule was applied

// Applies the rules, the first that fits first, until none fits any more; nodes are visited in order, so
// whatever a rule looks at is already rewritten. One pass: linear in the graph. A value stands only for
// values of its own type (dtype, shape and strides), and for no result if it shares memory with a source:
// results are handed out, sources are written over. What nothing reads any longer stays: dead_code.h. Throws
// Internal if a rule is malformed or does not come to an end.
ir::Graph apply_rules(ir::Graph graph, std::span<const Rule> rules, Counts& counts);

}  // namespace shoal::rewrite
