// SPDX-License-Identifier: Apache-2.0
#include "shoal/checkpoint/folder.h"

#include <algorithm>
#include <charconv>

#include "shoal/base/error.h"

namespace shoal::checkpoint {

static constexpr std::string_view kPrefix = "step_";
static constexpr std::size_t kDigits = 8;

std::string name_of_step(std::int64_t step) {
  SHOAL_CHECK(step >= 0, Internal, "checkpoint: step ", step, " is below 0");
  const std::string digits = std::to_string(step);
  return std::string(kPrefix) + std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits;
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kDigits) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || at != end || step < 0 || name_of_step(step) != name) return std::nullopt;
  return step;
}

bool is_leftover(std::string_view name) {
  return name.starts_with(".step_") && (name.find("-partial-") != std::string_view::npos ||
                                        name.find("-removed-") != std::string_view::npos);
}

std::vector<std::int64_t> steps_among(std::span<const std::string> names) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names)
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::ranges::sort(steps);
  return steps;
}

std::vector<std::int64_t> superseded(std::span<const std::int64_t> steps, std::int64_t keep) {
  const auto kept = static_cast<std::size_t>(keep);
  if (keep <= 0 || steps.size() <= kept) return {};
  return {steps.begin(), steps.end() - keep};
}

}  // namespace shoal::checkpoint
