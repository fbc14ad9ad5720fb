// SPDX-License-Identifier: Apache-2.0
// The table of ops, for rules.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "shoal/ir/graph.h"

namespace shoal::sharding {

struct OpRule {
  std::string_view op;
  std::string_view dims;  // in the language of factors.h; where `dims_of` is set, ignored
  std::string_view
      linear;  // "self | other": Partial(sum) in one of these gives Partial(sum); "a+b": in all of them
  std::string (*dims_of)(const ir::Graph& graph, const ir::Node& node) = nullptr;
  bool is_reshape = false;      // cuts follow through_view
  std::string_view sizes = "";  // the argument that holds the sizes of the first output
};

std::span<const OpRule> all_rules();
const OpRule* find_rule(std::string_view op);  // null: there is none

}  // namespace shoal::sharding
