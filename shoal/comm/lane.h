// SPDX-License-Identifier: Apache-2.0
// A thread that runs what it is given, one after the other, and the call that waits for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/comm/communicator.h"

namespace shoal::comm {

// What ends a group's calls before their time.
class Ends {
 public:
  virtual ~Ends() = default;
  // Ends every call of the group; the first error stays. Any thread.
  virtual void fail_with(const Error& error) noexcept = 0;
};

class LaneWork final : public Work {
 public:
  // `group` is borrowed, and outlives the call unless it is done.
  LaneWork(Ends& group, std::string what) : group_(group), what_(std::move(what)) {}
  ~LaneWork() override;

  void wait(std::chrono::nanoseconds limit) override;
  bool done() override;

  // By who runs it, once; the caller may free the call as soon as this has begun.
  void finish(std::optional<Error> error);

 private:
  Ends& group_;
  const std::string what_;
  std::mutex mutex_;  // of what follows
  std::condition_variable finished_;
  bool is_done_ = false;
  std::optional<Error> error_;
};

class Lane {
 public:
  Lane() = default;
  ~Lane();  // runs what was given first
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Its thread, which has to be there before a call that it is to run.
  void start();
  void run(std::function<void()> job);

 private:
  void work();

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // the first one is under way
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace shoal::comm
