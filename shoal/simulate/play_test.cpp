// SPDX-License-Identifier: Apache-2.0
#include "shoal/simulate/play.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::simulate;

static const std::vector<Stream> kTwoRanks = {{0, "compute"}, {0, "send"}, {1, "compute"}};

TEST_CASE("a stream does one task after the other, and goes on while a transfer is under way") {
  const Tasks tasks = {kTwoRanks,
                       {{0, "a", 3}, {0, "b", 4}, {1, "a", 2, {0}}, {2, "c", 5, {2}}, {0, "d", 1, {3}}}};
  CHECK(play(tasks) == std::vector<Span>{{0, 3}, {3, 7}, {3, 5}, {5, 10}, {10, 11}});
}

TEST_CASE("a task that waits holds up those behind it on its stream") {
  const Tasks tasks = {kTwoRanks, {{2, "late", 9}, {0, "waits", 1, {0}}, {0, "could go", 1}}};
  CHECK(play(tasks) == std::vector<Span>{{0, 9}, {9, 10}, {10, 11}});
}

TEST_CASE("a task takes longer while one of another stream of its rank is under way, and only then") {
  const std::vector<Stream> streams = {{0, "compute", 2}, {0, "send"}, {1, "compute", 2}, {0, "other"}};
  const Tasks tasks = {streams,
                       {{0, "a", 4},
                        {0, "b", 10},
                        {0, "c", 6},
                        {1, "a", 5, {0}},      // 4 to 9: of b 2.5 are done by then
                        {3, "a too", 9, {0}},  // to 13: 4.5 of b are done, and it is there by 18.5
                        {2, "d", 20}}};
  CHECK(play(tasks) == std::vector<Span>{{0, 4}, {4, 19}, {19, 25}, {4, 9}, {4, 13}, {0, 20}});
  // Each slows the other: of 4 and 12 the first is there at 8, when 4 of the second are done.
  const Tasks both = {{{0, "compute", 2}, {0, "send", 2}}, {{0, "a", 4}, {1, "b", 12}}};
  CHECK(play(both) == std::vector<Span>{{0, 8}, {0, 16}});
  // What takes no time slows nothing.
  const Tasks none = {streams, {{0, "a", 4}, {1, "a", 0}}};
  CHECK(play(none)[0] == Span{0, 4});
  const std::vector<Bubble> found = bubbles(tasks, play(tasks), "compute");
  CHECK(found[0].nanoseconds == 0);
  CHECK(found[0].of == 25);
}

TEST_CASE("tasks that wait for each other are named") {
  const Tasks tasks = {kTwoRanks, {{0, "a", 1, {2}}, {0, "b", 1}, {2, "c", 1, {1}}}};
  CHECK(error_of([&] { play(tasks); }) ==
        "simulate: tasks wait for ever: 'a' on compute of rank 0 for 'c' on compute of rank 1; 'c' on "
        "compute of "
        "rank 1 for 'b' on compute of rank 0");
}

// When a task of that stream ends that begins then, where others begin and end as in `spans`.
static std::int64_t end_of(const Tasks& tasks, const std::vector<Span>& spans, std::size_t index,
                           std::int64_t begin) {
  const Task& task = tasks.tasks[index];
  const Stream& stream = tasks.streams[at(task.stream)];
  std::vector<std::int64_t> times = {begin};  // at which what is beside it may change
  const auto is_beside = [&](std::size_t other, std::int64_t time) {
    const Stream& of = tasks.streams[at(tasks.tasks[other].stream)];
    return of.rank == stream.rank && &of != &stream && spans[other].begin <= time && time < spans[other].end;
  };
  if (stream.beside != 1)
    for (const Span& span : spans)
      for (const std::int64_t time : {span.begin, span.end})
        if (time > begin) times.push_back(time);
  std::ranges::sort(times);
  auto work = static_cast<double>(task.nanoseconds);
  for (std::size_t i = 0;; ++i) {
    double slower = 1;
    for (std::size_t other = 0; stream.beside != 1 && other < spans.size(); ++other)
      if (is_beside(other, times[i])) slower = stream.beside;
    const double end = static_cast<double>(times[i]) + work * slower;
    if (i + 1 == times.size() || end <= static_cast<double>(times[i + 1])) return std::llround(end);
    work -= static_cast<double>(times[i + 1] - times[i]) / slower;
  }
}

// Starts again and again as late as what is before a task asks, until nothing moves.
static std::vector<Span> by_relaxation(const Tasks& tasks) {
  std::vector<Span> spans(tasks.tasks.size());
  for (bool moved = true; moved;) {
    moved = false;
    std::vector<std::int64_t> free(tasks.streams.size(), 0);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Task& task = tasks.tasks[i];
      auto& stream = free[static_cast<std::size_t>(task.stream)];
      std::int64_t begin = stream;
      for (const int other : task.after) begin = std::max(begin, spans[static_cast<std::size_t>(other)].end);
      const Span span = {begin, end_of(tasks, spans, i, begin)};
      moved |= span != spans[i];
      spans[i] = span;
      stream = span.end;
    }
  }
  return spans;
}

TEST_CASE("random tasks start as early as what is before them allows, in whatever order they are listed") {
  std::mt19937 draw(1);
  const auto below = [&](int count) { return static_cast<int>(draw() % static_cast<unsigned>(count)); };
  for (int round = 0; round < 200; ++round) {
    const int count = 1 + below(60), num_streams = 1 + below(6), num_ranks = 1 + below(3);
    Tasks tasks;
    for (int i = 0; i < num_streams; ++i)
      tasks.streams.push_back({i % num_ranks, "compute", below(2) == 1 ? 2.0 : 1.0});
    // Tasks wait for those of smaller rank in a hidden order, and each stream's are listed by that order.
    std::vector<std::vector<int>> of_stream(static_cast<std::size_t>(num_streams));
    std::vector<int> stream_of;
    for (int i = 0; i < count; ++i) {
      stream_of.push_back(below(num_streams));
      of_stream[static_cast<std::size_t>(stream_of.back())].push_back(i);
    }
    std::vector<int> index(static_cast<std::size_t>(count));
    std::vector<int> listed;
    for (const auto& row : of_stream) listed.insert(listed.end(), row.begin(), row.end());
    for (int i = 0; i < count; ++i) index[static_cast<std::size_t>(listed[static_cast<std::size_t>(i)])] = i;
    for (const int hidden : listed) {
      Task task = {stream_of[static_cast<std::size_t>(hidden)], "t",
                   std::int64_t{below(10)} << 40};  // halves are whole
      for (int k = below(4); k > 0 && hidden > 0; --k)
        task.after.push_back(index[static_cast<std::size_t>(below(hidden))]);
      tasks.tasks.push_back(task);
    }
    CHECK(play(tasks) == by_relaxation(tasks));
  }
}

TEST_CASE("the trace has every task, in the order of their ends") {
  const Tasks tasks = {kTwoRanks, {{0, "a", 3}, {0, "b", 4}, {1, "a", 2, {0}, 64}}};
  CHECK(trace_of(tasks, play(tasks)).events == std::vector<observe::Event>{{0, "compute", "a", 0, 3, 0},
                                                                           {0, "send", "a", 3, 5, 64},
                                                                           {0, "compute", "b", 3, 7, 0}});
}

TEST_CASE("a bubble is what a stream waits between its first start and its last end") {
  const Tasks tasks = {kTwoRanks,
                       {{0, "a", 3}, {1, "a", 1, {0}}, {2, "b", 2, {1}}, {0, "c", 2, {2}}, {2, "d", 1}}};
  const std::vector<Bubble> found = bubbles(tasks, play(tasks), "compute");
  REQUIRE(found.size() == 2);
  CHECK(found[0].rank == 0);
  CHECK(found[0].nanoseconds == 3);
  CHECK(found[0].of == 8);
  CHECK(found[0].rate() == 0.375);
  CHECK(found[1].rank == 1);
  CHECK(found[1].nanoseconds == 0);
  CHECK(found[1].of == 3);
}
