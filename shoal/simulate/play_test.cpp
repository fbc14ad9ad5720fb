// SPDX-License-Identifier: Apache-2.0
#include "shoal/simulate/play.h"

#include <doctest/doctest.h>

#include <algorithm>
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

TEST_CASE("tasks that wait for each other are named") {
  const Tasks tasks = {kTwoRanks, {{0, "a", 1, {2}}, {0, "b", 1}, {2, "c", 1, {1}}}};
  CHECK(error_of([&] { play(tasks); }) ==
        "simulate: tasks wait for ever: 'a' on compute of rank 0 for 'c' on compute of rank 1; 'c' on "
        "compute of "
        "rank 1 for 'b' on compute of rank 0");
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
      const Span span = {begin, begin + task.nanoseconds};
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
    const int count = 1 + below(60), num_streams = 1 + below(6);
    Tasks tasks;
    for (int i = 0; i < num_streams; ++i) tasks.streams.push_back({i, "compute"});
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
      Task task = {stream_of[static_cast<std::size_t>(hidden)], "t", below(10)};
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
