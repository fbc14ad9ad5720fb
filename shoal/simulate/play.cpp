// SPDX-License-Identifier: Apache-2.0
// Goes from one end of a task to the next. A task that is slowed by what is beside it has its end put off, or drawn
// near, when that begins or ends: an end is looked at only if it is still that of what its stream does.
#include "shoal/simulate/play.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::simulate {

static std::string name_of(const Tasks& tasks, const Task& task) {
  const Stream& stream = tasks.streams[at(task.stream)];
  return concat("'", task.name, "' on ", stream.name, " of rank ", stream.rank);
}

namespace {

class Player {
 public:
  explicit Player(const Tasks& tasks)
      : tasks_(tasks),
        rows_(tasks.streams.size()),
        waiting_(tasks.tasks.size()),
        done_(tasks.tasks.size(), false),
        spans_(tasks.tasks.size()) {
    for (std::size_t i = 0; i < tasks.tasks.size(); ++i)
      rows_[at(tasks.tasks[i].stream)].tasks.push_back(static_cast<int>(i));
    std::map<int, int> numbers;  // by rank
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const auto [found, is_new] =
          numbers.try_emplace(tasks.streams[i].rank, static_cast<int>(ranks_.size()));
      if (is_new) ranks_.emplace_back();
      rows_[i].rank = found->second;
      if (tasks.streams[i].beside != 1) ranks_[at(found->second)].slowed.push_back(static_cast<int>(i));
    }
  }

  std::vector<Span> play() {
    for (int stream = static_cast<int>(rows_.size()) - 1; stream >= 0; --stream) go_on(stream);
    while (!ends_.empty()) {
      const auto [end, stream] = ends_.top();
      ends_.pop();
      Row& row = rows_[at(stream)];
      if (!row.is_running || row.end != end) continue;  // put off, or drawn near
      now_ = end;
      finish(stream);
    }
    if (left() > 0) fail_stuck();
    return std::move(spans_);
  }

 private:
  struct Row {
    std::vector<int> tasks;  // in order
    int rank = 0;            // a number of Player::ranks_
    std::size_t next = 0;    // of `tasks`: the one that runs, or else the one to start
    bool is_running = false;
    std::int64_t end = 0;  // of the one that runs, as things are
    double work = 0;       // likewise, nanoseconds that it still takes if nothing is beside it
    std::int64_t since = 0;
  };
  struct Rank {
    std::vector<int> slowed;  // its streams that are
    int under_way = 0;        // tasks of all its streams that take time
  };

  std::size_t left() const {
    std::size_t count = 0;
    for (const Row& row : rows_) count += row.tasks.size() - row.next;
    return count;
  }

  // While it has a task under way.
  double times(int stream) const {
    const bool is_alone = ranks_[at(rows_[at(stream)].rank)].under_way == 1;
    return is_alone ? 1 : tasks_.streams[at(stream)].beside;
  }

  void run_from_now(int stream) {
    Row& row = rows_[at(stream)];
    row.since = now_;
    row.end = now_ + std::llround(row.work * times(stream));
    ends_.emplace(row.end, stream);
  }

  // A task of that stream has begun, or ended: what others of its rank do goes on more slowly, or faster.
  void change(int stream, int count) {
    Rank& rank = ranks_[at(rows_[at(stream)].rank)];
    std::vector<std::pair<int, double>> before;  // streams
    for (const int other : rank.slowed)
      if (other != stream && takes_time(other)) before.emplace_back(other, times(other));
    rank.under_way += count;
    for (const auto& [other, slower] : before) {
      if (times(other) == slower) continue;
      Row& row = rows_[at(other)];
      row.work = std::max(0.0, row.work - static_cast<double>(now_ - row.since) / slower);
      run_from_now(other);
    }
  }

  bool takes_time(int stream) const {
    const Row& row = rows_[at(stream)];
    return row.is_running && tasks_.tasks[at(row.tasks[row.next])].nanoseconds > 0;
  }

  // Starts what is next on a stream, unless that has to wait.
  void go_on(int stream) {
    Row& row = rows_[at(stream)];
    if (row.is_running || row.next == row.tasks.size()) return;
    const int index = row.tasks[row.next];
    const Task& task = tasks_.tasks[at(index)];
    const auto lacks = std::ranges::find_if(task.after, [&](int other) { return !done_[at(other)]; });
    if (lacks != task.after.end()) {
      waiting_[at(*lacks)].push_back(stream);
      return;
    }
    spans_[at(index)].begin = now_;
    row.is_running = true;
    row.work = static_cast<double>(task.nanoseconds);
    if (task.nanoseconds > 0) change(stream, 1);
    run_from_now(stream);
  }

  void finish(int stream) {
    Row& row = rows_[at(stream)];
    const int index = row.tasks[row.next++];
    row.is_running = false;
    spans_[at(index)].end = now_;
    done_[at(index)] = true;
    if (tasks_.tasks[at(index)].nanoseconds > 0) change(stream, -1);
    go_on(stream);
    for (const int other : std::exchange(waiting_[at(index)], {})) go_on(other);
  }

  [[noreturn]] void fail_stuck() const {
    std::string text;
    for (const Row& row : rows_) {
      if (row.next == row.tasks.size()) continue;
      const Task& task = tasks_.tasks[at(row.tasks[row.next])];
      const auto lacks = std::ranges::find_if(task.after, [&](int other) { return !done_[at(other)]; });
      text += concat(text.empty() ? "" : "; ", name_of(tasks_, task), " for ",
                     name_of(tasks_, tasks_.tasks[at(*lacks)]));
    }
    fail(ErrorKind::InvalidInput, "simulate: tasks wait for ever: ", text);
  }

  using End = std::pair<std::int64_t, int>;  // a time, and a stream

  const Tasks& tasks_;
  std::vector<Row> rows_;                  // by stream
  std::vector<std::vector<int>> waiting_;  // streams, by the task that their next one lacks
  std::vector<bool> done_;                 // by task
  std::vector<Span> spans_;                // likewise
  std::vector<Rank> ranks_;                // in the order of streams
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::int64_t now_ = 0;
};

}  // namespace

std::vector<Span> play(const Tasks& tasks) { return Player(tasks).play(); }

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
    found[at(index)].nanoseconds -= spans[i].end - spans[i].begin;
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    found[i].of = whole[i].end - std::max<std::int64_t>(whole[i].begin, 0);
    found[i].nanoseconds += found[i].of;
  }
  return found;
}

}  // namespace shoal::simulate
