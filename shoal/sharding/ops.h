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
  // "self | other": Partial(sum) in one of these gives Partial(sum); "a+b": in all of them; "a if value=0": where
  // that argument is that number; "a -> +.": in the outputs with a plus, the last sign being for all that follow, and
  // the others hang on none of these.
  std::string_view linear;
  std::string (*dims_of)(const ir::Graph& graph, const ir::Node& node) = nullptr;
  bool is_reshape = false;  // cuts follow through_view
  // The argument that says the shape of the first output, or as a number the rows of the input; or `groups`, of which
  // there are as many as there are channels for.
  std::string_view sizes = "";
  bool is_drawn = false;  // the numbers depend on the place in the whole tensor
};

// An op that can be cut along a dim which the op itself needs whole, if it runs as another op that is told
// where its part of that dim begins.
struct PartForm {
  std::string_view op;
  std::string_view as;
  std::string_view arguments;  // that it takes over, in its order; `first` and `whole` follow
  std::string (*dims_of)(const ir::Graph& graph, const ir::Node& node);  // of that dim alone; empty: not so
  bool is_of_output = false;   // whose dim it is: the first output's, or the first tensor's that it reads
  bool is_last_dim = false;    // or the first
  std::string_view size = "";  // the argument that holds the size of that dim
};

std::span<const OpRule> all_rules();
const OpRule* find_rule(std::string_view op);  // null: there is none
std::span<const PartForm> all_part_forms();
const PartForm* find_part_form(std::string_view op);  // null: there is none

}  // namespace shoal::sharding
