// SPDX-License-Identifier: Apache-2.0
#include "shoal/observe/trace.h"

#include <chrono>
#include <iomanip>
#include <sstream>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::observe {

void Trace::add(Event event) {
  if (events.size() < capacity)
    events.push_back(std::move(event));
  else
    ++dropped;
}

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Span::~Span() {
  if (trace_ == nullptr) return;
  trace_->add({trace_->rank, std::string(stream_), std::string(name_), begin_, now(), bytes_, memory_});
}

// trace rank 0 capacity 1048576 dropped 0
// 0 "compute" "aten::mm" 1200 3400 64 4096
std::string to_text(const Trace& trace) {
  std::ostringstream out;
  out << "trace rank " << trace.rank << " capacity " << trace.capacity << " dropped " << trace.dropped
      << '\n';
  for (const auto& event : trace.events)
    out << event.rank << ' ' << std::quoted(event.stream) << ' ' << std::quoted(event.name) << ' '
        << event.begin << ' ' << event.end << ' ' << event.bytes << ' ' << event.memory << '\n';
  return std::move(out).str();
}

Trace from_text(std::string_view text) {
  std::istringstream in{std::string(text)};
  Trace trace;
  std::string line;
  std::getline(in, line);
  std::istringstream head(line);
  std::string word[4];
  head >> word[0] >> word[1] >> trace.rank >> word[2] >> trace.capacity >> word[3] >> trace.dropped;
  SHOAL_CHECK(
      head && word[0] == "trace" && word[1] == "rank" && word[2] == "capacity" && word[3] == "dropped",
      InvalidInput, "trace: line 1 is not 'trace rank N capacity N dropped N': ", line);
  for (int number = 2; std::getline(in, line); ++number) {
    std::istringstream fields(line);
    Event event;
    fields >> event.rank >> std::quoted(event.stream) >> std::quoted(event.name) >> event.begin >>
        event.end >> event.bytes >> event.memory;
    SHOAL_CHECK(fields, InvalidInput, "trace: line ", number, " is not an event: ", line);
    trace.events.push_back(std::move(event));
  }
  return trace;
}

}  // namespace shoal::observe
