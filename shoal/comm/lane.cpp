// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/lane.h"

#include <algorithm>
#include <utility>

namespace shoal::comm {

static constexpr std::chrono::hours kLongest{24 * 365};

LaneWork::~LaneWork() {
  std::unique_lock lock(mutex_);
  if (is_done_) return;
  lock.unlock();
  group_.fail_with(Error(ErrorKind::PeerLost, concat(what_, ": given up before it was done")));
  lock.lock();
  finished_.wait(lock, [&] { return is_done_; });
}

void LaneWork::wait(std::chrono::nanoseconds limit) {
  // wait_until of a time that is too far away would be in the past.
  const auto bounded = std::clamp<std::chrono::nanoseconds>(limit, std::chrono::nanoseconds(0), kLongest);
  std::unique_lock lock(mutex_);
  if (!finished_.wait_for(lock, bounded, [&] { return is_done_; })) {
    lock.unlock();
    group_.fail_with(Error(ErrorKind::Timeout, concat(what_, ": not done after ",
                                                      std::chrono::duration<double>(limit).count(), " s")));
    lock.lock();
    finished_.wait(lock, [&] { return is_done_; });
  }
  if (error_) throw Error(*error_);
}

bool LaneWork::done() {
  const std::lock_guard lock(mutex_);
  return is_done_;
}

void LaneWork::finish(std::optional<Error> error) {
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  is_done_ = true;
  finished_.notify_all();  // under the lock: the call may be gone right after it
}

Lane::~Lane() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Lane::start() {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread(&Lane::work, this);
}

void Lane::run(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void Lane::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_over_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()>& job = jobs_.front();  // stays where it is while others are added
    lock.unlock();
    job();
    lock.lock();
    jobs_.pop_front();
  }
}

}  // namespace shoal::comm
