// SPDX-License-Identifier: Apache-2.0
// Makes the items of a sequence ahead of their use, on threads of its own, and hands them out in order.
//
//   threads   | make 0 | make 2 | make 3 |   waits: `depth` items are ready
//             | make 1      | make 4 |
//   caller          next()→0   next()→1   …
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace shoal::data {

// `make(index)` is called on several threads at once, for each index from `first` on, once. One thread calls
// next().
template <class Item>
class Prefetcher {
 public:
  Prefetcher(std::function<Item(std::int64_t)> make, std::int64_t first, int threads, int depth)
      : make_(std::move(make)), depth_(depth) {
    shared_.next_to_make = shared_.next_to_give = first;
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~Prefetcher() {
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.ends = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next item; throws what make() threw for it.
  Item next() {
    std::unique_lock lock(shared_.mutex);
    if (!shared_.ready.contains(shared_.next_to_give)) {
      const auto begin = std::chrono::steady_clock::now();
      changed_.wait(lock, [&] { return shared_.ready.contains(shared_.next_to_give); });
      seconds_waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    Made made = std::move(shared_.ready.extract(shared_.next_to_give++).mapped());
    lock.unlock();
    changed_.notify_all();
    if (made.failure) std::rethrow_exception(made.failure);
    return std::move(*made.item);
  }

  double seconds_waited() const { return seconds_waited_; }  // in next(), so far

 private:
  struct Made {
    std::optional<Item> item;
    std::exception_ptr failure;  // instead of the item
  };

  void run() {
    std::unique_lock lock(shared_.mutex);
    for (;;) {
      changed_.wait(lock,
                    [&] { return shared_.ends || shared_.next_to_make < shared_.next_to_give + depth_; });
      if (shared_.ends) return;
      const std::int64_t index = shared_.next_to_make++;
      lock.unlock();
      Made made;
      try {
        made.item.emplace(make_(index));
      } catch (...) {
        made.failure = std::current_exception();
      }
      lock.lock();
      shared_.ready.emplace(index, std::move(made));
      changed_.notify_all();
    }
  }

  std::function<Item(std::int64_t)> make_;
  int depth_;
  struct {
    std::mutex mutex;  // guards the rest
    std::map<std::int64_t, Made> ready;
    std::int64_t next_to_make = 0;
    std::int64_t next_to_give = 0;
    bool ends = false;
  } shared_;
  std::condition_variable changed_;
  double seconds_waited_ = 0;  // of the caller's thread alone
  std::vector<std::thread> threads_;
};

}  // namespace shoal::data
