// SPDX-License-Identifier: Apache-2.0
// Plays tasks on streams: what would happen, if each took as long as it says.
//
//   rank 0 compute  | a 3 | b 3 |                 b goes after a, its stream's earlier task
//   rank 0 send     .     | a' 1 |                a transfer is a task of its own, after a
//   rank 1 compute  .            | c 3 |          after the transfer
//
// A stream starts its tasks in the order in which they are listed, each as soon as those that it waits for
// have ended. Nobody knows here what a task is for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/observe/trace.h"

namespace shoal::simulate {

inline std::size_t at(int index) { return static_cast<std::size_t>(index); }

struct Stream {
  int rank = 0;
  std::string name;  // "compute", …
  // Its tasks take so many times as long while one of another stream of its rank is under way.
  double beside = 1;
};

struct Task {
  int stream = 0;    // index of Tasks::streams
  std::string name;  // "": not for the trace
  std::int64_t nanoseconds = 0;
  std::vector<int> after;   // indices of Tasks::tasks: those that it waits for
  std::int64_t bytes = 0;   // made or moved, for the trace
  std::int64_t memory = 0;  // likewise, what its rank has when it has ended; 0: not known
};

struct Tasks {
  std::vector<Stream> streams;
  std::vector<Task> tasks;
};

struct Span {
  std::int64_t begin = 0;  // nanoseconds from the start of all
  std::int64_t end = 0;
  friend bool operator==(const Span&, const Span&) = default;
};

// By task. Throws InvalidInput with a task of each stream that waits for ever.
std::vector<Span> play(const Tasks& tasks);

observe::Trace trace_of(const Tasks& tasks, const std::vector<Span>& spans);

// A stream's time from its first start to its last end, and how much of that it has done nothing.
struct Bubble {
  int rank = 0;
  std::int64_t nanoseconds = 0;
  std::int64_t of = 0;

  double rate() const { return of == 0 ? 0 : static_cast<double>(nanoseconds) / static_cast<double>(of); }
};
std::vector<Bubble> bubbles(const Tasks& tasks, const std::vector<Span>& spans, std::string_view stream);

}  // namespace shoal::simulate
