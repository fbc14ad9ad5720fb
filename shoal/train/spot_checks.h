// SPDX-License-Identifier: Apache-2.0
// When a captured step is compared with what its model does now: a graph's 2nd, 4th and 8th step, and from
// then on whenever recording once more costs at most a share of the time since the last check.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace shoal::train {

class SpotChecks {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Clock = std::function<Time()>;

  // `share`: 0: none after the 8th step; negative: none at all.
  explicit SpotChecks(double share, Clock clock = std::chrono::steady_clock::now);

  // For the `number`-th step of a graph, counted from 1. Looks at no clock.
  bool is_due(std::int64_t number, bool is_time) const;
  // Whether the cost of the last check is at most the share of the time since.
  bool is_time() const;
  // Does the check and measures it. One that throws leaves everything as it was: the next step is checked
  // again.
  void run(const std::function<void()>& check);

 private:
  double share_;
  Clock clock_;
  Time last_ = {};
  Time::duration cost_ = {};
};

}  // namespace shoal::train
