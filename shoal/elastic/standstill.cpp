// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/standstill.h"

#include <algorithm>

namespace shoal::elastic {

using rendezvous::Clock;

static constexpr std::chrono::milliseconds kPatience{2000};

std::string Standstill::look(std::span<const Rank> ranks) {
  const Clock::time_point now = Clock::now();
  if (now - looked_ < std::chrono::milliseconds{kLook}) return {};
  looked_ = now;
  std::vector<std::uint64_t> num_calls;
  for (const Rank& rank : ranks) num_calls.push_back(rank.flight->num_calls());
  if (num_calls != num_calls_) {
    num_calls_ = num_calls;
    since_ = now;
    patience_ = kPatience;
  }
  if (now - since_ < patience_ || std::ranges::count(num_calls, 0U) > 0) return {};
  patience_ *= 2;  // a step that takes minutes is not looked at each second
  std::vector<RankReport> reports;
  for (const Rank& rank : ranks) reports.push_back(seen_of(rank));
  const auto standstill = standstill_of(reports);
  return standstill ? verdict_of(*standstill) : std::string();
}

}  // namespace shoal::elastic
