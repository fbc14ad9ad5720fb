// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm_c10d/watch.h"

#include <chrono>

namespace shoal::comm_c10d {

static constexpr std::chrono::milliseconds kPeriod{100};

void Watch::wake() {
  if (!is_asleep_) return;
  const std::lock_guard lock(mutex_);
  if (is_over_) return;
  is_woken_ = true;
  if (!thread_.joinable()) thread_ = std::thread(&Watch::work, this);
  changed_.notify_all();
}

void Watch::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Watch::work() {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    is_asleep_ = true;
    // What began before it was asleep did not wake it.
    changed_.wait(lock, [&] { return is_over_ || is_woken_ || is_needed_(); });
    is_woken_ = false;
    is_asleep_ = false;
    do {
      if (changed_.wait_for(lock, kPeriod, [&] { return is_over_; })) return;
      lock.unlock();
      look_();
      lock.lock();
    } while (is_needed_());
  }
}

}  // namespace shoal::comm_c10d
