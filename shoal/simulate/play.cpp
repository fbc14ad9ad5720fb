// SPDX-License-Identifier: Apache-2.0
// Since durations are known and streams are in order, no clock is needed: a task starts at the latest end of
// those before it, and tasks are done in any order that heeds them.
#include "shoal/simulate/play.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "shoal/base/error.h"

namespace shoal::simulate {

static std::string name_of(const Tasks& tasks, const Task& task) {
  const Stream& stream = tasks.streams[at(task.stream)];
  return concat("'", task.name, "' on ", stream.name, " of rank ", stream.rank);
}

[[noreturn]] static void fail_stuck(const Tasks& tasks, const std::vector<std::vector<int>>& rows,
                                    const std::vector<std::size_t>& next, const std::vector<bool>& done) {
  std::string text;
  for (std::size_t stream = 0; stream < rows.size(); ++stream) {
    if (next[stream] == rows[stream].size()) continue;
    const Task& task = tasks.tasks[at(rows[stream][next[stream]])];
    const auto lacks = std::ranges::find_if(task.after, [&](int other) { return !done[at(other)]; });
    text += concat(text.empty() ? "" : "; ", name_of(tasks, task), " for ",
                   name_of(tasks, tasks.tasks[at(*lacks)]));
  }
  fail(ErrorKind::InvalidInput, "simulate: tasks wait for ever: ", text);
}

std::vector<Span> play(const Tasks& tasks) {
  std::vector<std::vector<int>> rows(tasks.streams.size());  // tasks by stream, in order
  std::vector<std::vector<int>> waiting(
      tasks.tasks.size());  // streams, by the task that their next one lacks
  for (std::size_t i = 0; i < tasks.tasks.size(); ++i)
    rows[at(tasks.tasks[i].stream)].push_back(static_cast<int>(i));
  std::vector<std::size_t> next(rows.size(), 0);
  std::vector<std::int64_t> free(rows.size(), 0);
  std::vector<bool> done(tasks.tasks.size(), false);
  std::vector<Span> spans(tasks.tasks.size());
  std::vector<int> ready(rows.size());  // streams that may be able to go on
  std::iota(ready.begin(), ready.end(), 0);
  std::size_t left = tasks.tasks.size();
  while (!ready.empty()) {
    const int stream = ready.back();
    ready.pop_back();
    while (next[at(stream)] < rows[at(stream)].size()) {
      const int index = rows[at(stream)][next[at(stream)]];
      const Task& task = tasks.tasks[at(index)];
      const auto lacks = std::ranges::find_if(task.after, [&](int other) { return !done[at(other)]; });
      if (lacks != task.after.end()) {
        waiting[at(*lacks)].push_back(stream);
        break;
      }
      Span& span = spans[at(index)];
      span.begin = free[at(stream)];
      for (const int other : task.after) span.begin = std::max(span.begin, spans[at(other)].end);
      span.end = free[at(stream)] = span.begin + task.nanoseconds;
      done[at(index)] = true;
      ++next[at(stream)];
      --left;
      ready.insert(ready.end(), waiting[at(index)].begin(), waiting[at(index)].end());
    }
  }
  if (left > 0) fail_stuck(tasks, rows, next, done);
  return spans;
}

observe::Trace trace_of(const Tasks& tasks, const std::vector<Span>& spans) {
  observe::Trace trace = {.capacity = std::max<std::size_t>(tasks.tasks.size(), 1)};
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Task& task = tasks.tasks[i];
    if (task.name.empty()) continue;
    const Stream& stream = tasks.streams[at(task.stream)];
    trace.events.push_back(
        {stream.rank, stream.name, task.name, spans[i].begin, spans[i].end, task.bytes, task.memory});
  }
  std::ranges::stable_sort(trace.events, {}, &observe::Event::end);
  return trace;
}

std::vector<Bubble> bubbles(const Tasks& tasks, const std::vector<Span>& spans, std::string_view name) {
  std::vector<Bubble> found;
  std::vector<int> place(tasks.streams.size(), -1);  // in `found`
  std::vector<Span> whole;
  for (std::size_t i = 0; i < tasks.streams.size(); ++i) {
    if (tasks.streams[i].name != name) continue;
    place[i] = static_cast<int>(found.size());
    found.push_back({.rank = tasks.streams[i].rank});
    whole.push_back({.begin = -1});
  }
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const int index = place[at(tasks.tasks[i].stream)];
    if (index < 0) continue;
    Span& span = whole[at(index)];
    if (span.begin < 0) span.begin = spans[i].begin;  // tasks are in their stream's order
    span.end = spans[i].end;
    found[at(index)].nanoseconds -= tasks.tasks[i].nanoseconds;
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    found[i].of = whole[i].end - std::max<std::int64_t>(whole[i].begin, 0);
    found[i].nanoseconds += found[i].of;
  }
  return found;
}

}  // namespace shoal::simulate
