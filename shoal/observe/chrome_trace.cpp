// SPDX-License-Identifier: Apache-2.0
// Google's "Trace Event Format": "X" is a span with a duration, "M" names processes and threads, "C" counts.
#include "shoal/observe/chrome_trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace shoal::observe {

using nlohmann::json;

static constexpr double kNanosecondsPerMicrosecond = 1000;

static json name_event(const char* what, int rank, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

std::string chrome_trace(const Trace& trace) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const Event& event : trace.events) first = std::min(first, event.begin);

  std::string events;  // text at once: a million spans as a tree of JSON would take gigabytes
  const auto add = [&](const json& event) {
    if (!events.empty()) events += ',';
    events += event.dump(-1, ' ', false, json::error_handler_t::replace);
  };
  std::map<std::pair<int, std::string>, int> threads;
  std::map<int, std::int64_t> memory;  // by rank, as said last
  for (const Event& event : trace.events) {
    const auto next = static_cast<int>(threads.size());
    const auto [thread, is_new] = threads.try_emplace({event.rank, event.stream}, next);
    if (is_new) {
      add(name_event("process_name", event.rank, next, "rank " + std::to_string(event.rank)));
      add(name_event("thread_name", event.rank, next, event.stream));
    }
    json span = {{"ph", "X"},
                 {"name", event.name},
                 {"pid", event.rank},
                 {"tid", thread->second},
                 {"ts", static_cast<double>(event.begin - first) / kNanosecondsPerMicrosecond},
                 {"dur", static_cast<double>(event.end - event.begin) / kNanosecondsPerMicrosecond}};
    if (event.bytes != 0) span["args"] = {{"bytes", event.bytes}};
    add(span);
    if (event.memory > 0 && std::exchange(memory[event.rank], event.memory) != event.memory)
      add({{"ph", "C"},
           {"name", "memory"},
           {"pid", event.rank},
           {"ts", static_cast<double>(event.end - first) / kNanosecondsPerMicrosecond},
           {"args", {{"bytes", event.memory}}}});
  }
  return R"({"otherData":)" + json{{"dropped", trace.dropped}}.dump() + R"(,"traceEvents":[)" + events + "]}";
}

}  // namespace shoal::observe
