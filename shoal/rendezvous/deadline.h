// SPDX-License-Identifier: Apache-2.0
// When a bounded wait ends.
#pragma once

#include <algorithm>
#include <chrono>

namespace shoal::rendezvous {

using Clock = std::chrono::steady_clock;

// From now; a limit of years means a year, so that no sum overflows.
inline Clock::time_point deadline_after(std::chrono::nanoseconds limit) {
  return Clock::now() + std::clamp<std::chrono::nanoseconds>(limit, std::chrono::nanoseconds{0},
                                                             std::chrono::hours{24 * 365});
}

}  // namespace shoal::rendezvous
