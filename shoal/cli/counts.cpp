// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/counts.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "shoal/base/error.h"

namespace shoal::cli {

static std::optional<std::uint64_t> parsed(const std::string& text) {
  static constexpr std::string_view kUnits = "KMGT";
  std::uint64_t count = 0, factor = 1;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  const std::size_t unit = stop + 1 == end ? kUnits.find(*stop) : std::string_view::npos;
  for (std::size_t i = 0; unit != std::string_view::npos && i <= unit; ++i) factor *= 1000;
  const bool is_number = error == std::errc() && (stop == end || factor > 1);
  if (!is_number || count > ~std::uint64_t{0} / factor) return std::nullopt;
  return count * factor;
}

std::uint64_t count_in(const std::string& option, const std::string& text, const std::string& most) {
  const auto count = parsed(text);
  SHOAL_CHECK(count && *count > 0 && *count <= parsed(most), InvalidInput, option, " is \"", text,
              "\"; it takes 1 to ", most, ", with K, M, G or T for thousands, millions and so on");
  return *count;
}

}  // namespace shoal::cli
