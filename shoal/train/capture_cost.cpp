// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/capture_cost.h"

#include <bit>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::train {

std::optional<std::string> CaptureCost::after_run(std::int64_t forgotten) {
  constexpr std::int64_t kStart = 128;
  constexpr double kShare = 0.05;
  ++runs_;
  if (runs_ < kStart || !std::has_single_bit(static_cast<std::uint64_t>(runs_)) || has_spoken_)
    return std::nullopt;
  using Seconds = std::chrono::duration<double>;
  const Time now = clock_();
  const double share = Seconds(std::exchange(took_, {})) / Seconds(now - std::exchange(since_, now));
  const auto captures = std::exchange(captures_, 0);
  if (runs_ == kStart || share <= kShare) return std::nullopt;
  has_spoken_ = true;
  return concat("trainer: in the last ", runs_ / 2, " runs ", captures,
                " batches had sizes that no graph was there for, and to capture them took ",
                static_cast<int>(100 * share), " % of the time",
                forgotten > 0 ? concat("; ", forgotten,
                                       " graphs have gone for want of room: a larger graph_bytes keeps more")
                              : "",
                ". Remedy: batches of few sizes, padded to multiples of 64, say (C++: shoal::padded; Python: "
                "shoal.PaddingCollator, or a collator's pad_to_multiple_of)");
}

}  // namespace shoal::train
