// SPDX-License-Identifier: Apache-2.0
// A call as a coroutine: straight-line code that stops where it has to wait for other ranks, and goes on when
// somebody looks and finds that they have come. So a call needs no thread of its own, and asking whether it
// is done moves it on.
//
//   Task example(Group& group) {
//     …
//     co_await group.sync();   // an Until
//     …
//   }
#pragma once

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

namespace shoal::comm::shm {

// `count` words, `stride` bytes apart, have all come to `target`, counting modulo 2^32.
struct Until {
  const std::atomic<std::uint32_t>* word = nullptr;
  std::ptrdiff_t stride = 0;
  int count = 0;
  std::uint32_t target = 0;

  // Words that have come so far are not looked at again. Sequentially consistent: see Group::sleep.
  bool reached() {
    while (count > 0 && static_cast<std::int32_t>(word->load(std::memory_order_seq_cst) - target) >= 0) {
      word = reinterpret_cast<const std::atomic<std::uint32_t>*>(reinterpret_cast<const std::byte*>(word) +
                                                                 stride);
      --count;
    }
    return count == 0;
  }
};

class [[nodiscard]] Task {
 public:
  struct promise_type {  // NOLINT(readability-identifier-naming): the name that the language asks for
    Until until;
    std::exception_ptr error;

    struct Waiting {
      promise_type* promise;
      bool await_ready() const { return promise->until.reached(); }
      void await_suspend(std::coroutine_handle<>) const noexcept {}
      void await_resume() const noexcept {}
    };
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    Waiting await_transform(const Until& condition) {
      until = condition;
      return {this};
    }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };

  Task() = default;
  Task(Task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(coroutine_, other.coroutine_);
    return *this;
  }
  ~Task() {
    if (coroutine_) coroutine_.destroy();
  }

  // Goes on if it can; whether it did. Throws what the task threw.
  bool advance() {
    if (coroutine_.done() || !coroutine_.promise().until.reached()) return false;
    coroutine_.resume();
    if (coroutine_.promise().error) std::rethrow_exception(coroutine_.promise().error);
    return true;
  }
  // Whether it could go on.
  bool ready() const { return !coroutine_.done() && coroutine_.promise().until.reached(); }
  bool done() const { return coroutine_.done(); }

 private:
  explicit Task(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}
  std::coroutine_handle<promise_type> coroutine_;
};

}  // namespace shoal::comm::shm
