// SPDX-License-Identifier: Apache-2.0
// One table an enum, for printing and for parsing, so that the two cannot drift.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace shoal {

template <class Enum, std::size_t Count>
using Names = std::array<std::pair<Enum, std::string_view>, Count>;

template <class Enum, std::size_t Count>
constexpr std::string_view name_in(const Names<Enum, Count>& names, Enum wanted) {
  for (const auto& [value, name] : names)
    if (value == wanted) return name;
  return "?";
}

template <class Enum, std::size_t Count>
constexpr std::optional<Enum> parse_in(const Names<Enum, Count>& names, std::string_view wanted) {
  for (const auto& [value, name] : names)
    if (name == wanted) return value;
  return std::nullopt;
}

}  // namespace shoal
