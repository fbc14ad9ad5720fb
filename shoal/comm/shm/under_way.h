// SPDX-License-Identifier: Apache-2.0
// A rank's groups that have calls under way, each with the thread that made them: it lets them go on while it
// waits in another group.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace shoal::comm::shm {

class Group;

// Any thread.
class UnderWay {
 public:
  void add(Group& group) {
    const std::scoped_lock lock(mutex_);
    const auto known = std::ranges::find(groups_, &group, &Entry::first);
    if (known != groups_.end())
      known->second = std::this_thread::get_id();
    else
      groups_.emplace_back(&group, std::this_thread::get_id());
    count_ = groups_.size();
  }
  void remove(Group& group) noexcept {
    if (count_ == 0) return;
    const std::scoped_lock lock(mutex_);
    std::erase_if(groups_, [&](const Entry& entry) { return entry.first == &group; });
    count_ = groups_.size();
  }
  std::vector<Group*> of_this_thread() const {
    std::vector<Group*> found;
    if (count_ == 0) return found;
    const std::scoped_lock lock(mutex_);
    for (const auto& [group, thread] : groups_)
      if (thread == std::this_thread::get_id()) found.push_back(group);
    return found;
  }

 private:
  using Entry = std::pair<Group*, std::thread::id>;

  mutable std::mutex mutex_;  // guards groups_
  std::vector<Entry> groups_;
  std::atomic<std::size_t> count_ = 0;
};

}  // namespace shoal::comm::shm
