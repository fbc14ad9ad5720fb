// SPDX-License-Identifier: Apache-2.0
// What happened, or what the simulator says would happen: spans of time by rank and stream. Recording only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::observe {

struct Event {              // a span of time
  int rank = 0;             // whose it is
  std::string stream;       // "compute", …: what runs one after the other
  std::string name;         // an instruction's op, "step", …
  std::int64_t begin = 0;   // nanoseconds of a clock that never goes back
  std::int64_t end = 0;     // likewise
  std::int64_t bytes = 0;   // made or moved; 0 where that means nothing
  std::int64_t memory = 0;  // bytes that the rank has when it has ended; 0 where that is not known
  friend bool operator==(const Event&, const Event&) = default;
};

// Owned and written by one thread. When it is full, events are counted in `dropped` instead of kept.
struct Trace {
  int rank = 0;                                 // of all events
  std::size_t capacity = std::size_t{1} << 20;  // events that are kept
  std::vector<Event> events;                    // in the order of their ends
  std::int64_t dropped = 0;                     // events
  friend bool operator==(const Trace&, const Trace&) = default;

  void add(Event event);  // counted in `dropped` where `events` is full
};

std::string to_text(const Trace& trace);  // one line an event
Trace from_text(std::string_view text);   // the inverse; throws InvalidInput with the line

std::int64_t now();  // nanoseconds, steady

// Adds an event that lasts from here to the end of the scope. A null trace records nothing and reads no
// clock.
class Span {
 public:
  // `trace`, `name` and `stream` are borrowed until it ends; `bytes` as in Event.
  Span(Trace* trace, std::string_view name, std::int64_t bytes = 0, std::string_view stream = "compute")
      : trace_(trace), name_(name), stream_(stream), bytes_(bytes), begin_(trace != nullptr ? now() : 0) {}
  ~Span();
  void set_memory(std::int64_t bytes) { memory_ = bytes; }  // as in Event
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Trace* trace_;             // borrowed
  std::string_view name_;    // borrowed: outlives the span
  std::string_view stream_;  // borrowed: outlives the span
  std::int64_t bytes_, memory_ = 0;
  std::int64_t begin_;
};

}  // namespace shoal::observe
