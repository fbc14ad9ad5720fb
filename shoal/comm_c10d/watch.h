// SPDX-License-Identifier: Apache-2.0
// A thread that looks every 100 ms whether all goes well, while something is under way; else it sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace shoal::comm_c10d {

class Watch {
 public:
  // Both are called on the watch's thread; `look` throws nothing.
  Watch(std::function<bool()> is_needed, std::function<void()> look)
      : is_needed_(std::move(is_needed)), look_(std::move(look)) {}
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // To be called once `is_needed` has become true: costs a look at an atomic while the watch is awake, as it
  // stays for 100 ms.
  void wake();
  void stop();  // when this returns no look is under way, and none follows

 private:
  void work();

  const std::function<bool()> is_needed_;
  const std::function<void()> look_;
  std::atomic<bool> is_asleep_ = true;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool is_woken_ = false;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace shoal::comm_c10d
