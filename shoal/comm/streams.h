// SPDX-License-Identifier: Apache-2.0
// Calls that go on beside what their thread does, in the order of a program:
//
//   thread    start(0)   …   start(1)   …   go_on()   …   wait(1)
//   stream a  └ call 0 ──────────────┘
//   stream b                 (needs 0)      └ call 1 ──────┘
//
// A call begins when it was started, those started before it on its stream have begun, and those that it needs
// are done. Who waits for one first begins all that were started before it, in that order: ranks that have
// their calls in one order wait for none that waits for them.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace shoal::comm {

// A call as Streams makes it: begin(), then done() any number of times, then finish() or drop().
class StreamCall {
 public:
  virtual ~StreamCall() = default;
  virtual void begin() = 0;          // returns before it is done
  virtual bool done() = 0;           // of what has begun: whether finish() would return at once; never blocks
  virtual void finish() = 0;         // waits; may throw what went wrong. Once more is nothing
  virtual void drop() noexcept = 0;  // of what has begun, and is not wanted any more
};

// One thread at a time.
class Streams {
 public:
  struct Row {                   // one call
    StreamCall* call = nullptr;  // borrowed
    int stream = 0;              // any number: those of one are begun in order
    std::vector<int> needs;      // earlier rows
  };

  // In the order of the program; the functions below have them by number, from 0.
  explicit Streams(std::vector<Row> rows = {}) : rows_(std::move(rows)), states_(rows_.size()) {}

  // Throws Internal where it was started and not waited for since.
  void start(int row);
  // Until it is done. Throws what the call throws, and Internal where it was not started.
  void wait(int row);
  // Begins what can begin, and lets go on what has.
  void go_on() {
    if (!under_way_.empty()) poll();
  }
  void drop() noexcept;  // all that is under way
  bool is_idle() const { return under_way_.empty(); }

 private:
  enum class State { Idle, Started, Begun, Done };

  void poll();
  void begin(int row);
  bool is_done(int row);
  State& state(int row) { return states_[static_cast<std::size_t>(row)]; }
  const Row& at(int row) const { return rows_[static_cast<std::size_t>(row)]; }

  std::vector<Row> rows_;
  std::vector<State> states_;
  std::vector<int> under_way_;  // started, and not waited for, in this order
};

}  // namespace shoal::comm
