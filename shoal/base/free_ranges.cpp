// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/free_ranges.h"

#include <algorithm>
#include <iterator>

namespace shoal {

std::optional<std::int64_t> FreeRanges::take(std::int64_t bytes) {
  const auto range = std::ranges::find_if(ranges_, [&](const auto& each) { return each.second >= bytes; });
  if (range == ranges_.end()) return std::nullopt;
  const auto [begin, room] = *range;
  ranges_.erase(range);
  if (room > bytes) ranges_[begin + bytes] = room - bytes;
  return begin;
}

void FreeRanges::give(std::int64_t begin, std::int64_t bytes) {
  auto range = ranges_.emplace(begin, bytes).first;
  if (const auto next = std::next(range);
      next != ranges_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    ranges_.erase(next);
  }
  if (range == ranges_.begin()) return;
  const auto before = std::prev(range);
  if (before->first + before->second != range->first) return;
  before->second += range->second;
  ranges_.erase(range);
}

}  // namespace shoal
