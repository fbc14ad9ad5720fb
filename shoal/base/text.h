// SPDX-License-Identifier: Apache-2.0
// Small text functions for messages that people read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shoal {

// The candidate with the fewest insertions, deletions, replacements and swaps of neighbours away from
// `wanted`; the first of several, "" when there is none. Borrows from `candidates`.
std::string_view nearest(std::string_view wanted, std::span<const std::string_view> candidates);

// Bytes as people read them, in powers of 1024: "17B", "1.5KiB", "12.0MiB".
std::string human_bytes(std::int64_t bytes);

// The inverse: a number and a unit, "2GiB", "1.5MiB", "17B"; nullopt where it is not that, or not above 0.
std::optional<std::int64_t> parse_bytes(std::string_view text);

// In double quotes, with \" \\ \n \t \r, and \xHH for the other control characters. Of this name, as a call with a
// std::string may mean std::quoted too, which leaves control characters as they are.
std::string in_quotes(std::string_view text);

}  // namespace shoal
