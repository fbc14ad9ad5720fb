// SPDX-License-Identifier: Apache-2.0
// What captures take of the time, where batches come in ever other sizes: said once, with what to do about it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace shoal::train {

class CaptureCost {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Clock = std::function<Time()>;

  explicit CaptureCost(Clock clock = std::chrono::steady_clock::now) : clock_(std::move(clock)) {}

  // A graph that differs in sizes alone from one that was there: captured and compiled in this time.
  void count(Time::duration took) {
    took_ += took;
    ++captures_;
  }
  // Told of every run. What to say, once: where captures took more than a twentieth of the time since half as
  // many runs, at the 256th, 512th, 1024th … The first 128 are those of training that starts. `forgotten`: how
  // many graphs had to go for the room of others.
  std::optional<std::string> after_run(std::int64_t forgotten);

 private:
  Clock clock_;
  std::int64_t runs_ = 0, captures_ = 0;
  Time::duration took_ = {};
  Time since_ = {};
  bool has_spoken_ = false;
};

}  // namespace shoal::train
