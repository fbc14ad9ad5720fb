// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/spot_checks.h"

#include <utility>

namespace shoal::train {

SpotChecks::SpotChecks(double share, Clock clock) : share_(share), clock_(std::move(clock)) {}

bool SpotChecks::is_due(std::int64_t number, bool is_time) const {
  if (share_ < 0) return false;
  if (number <= 8) return number == 2 || number == 4 || number == 8;
  return is_time;
}

bool SpotChecks::is_time() const {
  using Seconds = std::chrono::duration<double>;
  return share_ > 0 && Seconds(cost_) <= share_ * Seconds(clock_() - last_);
}

void SpotChecks::run(const std::function<void()>& check) {
  const Time start = clock_();
  check();
  last_ = clock_();
  cost_ = last_ - start;
}

}  // namespace shoal::train
