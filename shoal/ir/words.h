// SPDX-License-Identifier: Apache-2.0
// What the printer and the parser of the text form agree on.
#pragma once

#include <string_view>

#include "shoal/base/dtype.h"
#include "shoal/ir/graph.h"

namespace shoal::ir {

constexpr bool starts_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
constexpr bool continues_word(char c) {
  return starts_word(c) || (c >= '0' && c <= '9') || c == ':' || c == '.';
}

// Letters, digits, _ : and . as in op names, devices and argument names; all else is quoted.
constexpr bool is_word(std::string_view text) {
  if (text.empty() || !starts_word(text.front())) return false;
  for (const char c : text)
    if (!continues_word(c)) return false;
  return true;
}

// Words that among arguments are not symbols.
inline bool is_reserved(std::string_view word) {
  for (const std::string_view other : {"none", "true", "false", "inf", "nan", "float", "bool", "symbol"})
    if (word == other) return true;
  return parse_dtype(word).has_value();
}

// What add_node gives the outputs of a node.
constexpr Role role_of_outputs(Phase phase) {
  return phase == Phase::Forward ? Role::Activation : Role::Gradient;
}

}  // namespace shoal::ir
