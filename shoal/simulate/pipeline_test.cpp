// SPDX-License-Identifier: Apache-2.0
#include "shoal/simulate/pipeline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

using namespace shoal;
using namespace shoal::simulate;

static Bubble largest_bubble(const schedule::Timeline& timeline, const ActionTimes& times) {
  const Tasks tasks = tasks_of(timeline, times);
  const std::vector<Bubble> found = bubbles(tasks, play(tasks), "compute");
  return std::ranges::max(found, {}, &Bubble::nanoseconds);
}

static Bubble largest_bubble(std::string_view name, int ranks, int microbatches, const ActionTimes& times) {
  return largest_bubble(schedule::named(name).build(ranks, microbatches), times);
}

static const ActionTimes kEqual = {.forward = 1, .input_gradient = 1, .weight_gradient = 1};

TEST_CASE("a pass on another rank starts when the transfer has ended, one on the same when the pass has") {
  const ActionTimes times = {.forward = 10, .input_gradient = 20, .weight_gradient = 5, .transfer = 1};
  const Tasks tasks = tasks_of(schedule::named("zbv").build(2, 1), times);
  CHECK(to_text(trace_of(tasks, play(tasks))) ==
        "trace rank 0 capacity 16 dropped 0\n"
        "0 \"compute\" \"0F0\" 0 10 0 0\n"
        "0 \"send to 1\" \"0F0\" 10 11 0 0\n"
        "1 \"compute\" \"1F0\" 11 21 0 0\n"
        "1 \"compute\" \"2F0\" 21 31 0 0\n"
        "1 \"send to 0\" \"2F0\" 31 32 0 0\n"
        "0 \"compute\" \"3F0\" 32 42 0 0\n"
        "0 \"compute\" \"3I0\" 42 62 0 0\n"
        "0 \"send to 1\" \"3I0\" 62 63 0 0\n"
        "0 \"compute\" \"3W0\" 62 67 0 0\n"
        "1 \"compute\" \"2I0\" 63 83 0 0\n"
        "1 \"compute\" \"2W0\" 83 88 0 0\n"
        "1 \"compute\" \"1I0\" 88 108 0 0\n"
        "1 \"send to 0\" \"1I0\" 108 109 0 0\n"
        "1 \"compute\" \"1W0\" 108 113 0 0\n"
        "0 \"compute\" \"0I0\" 109 129 0 0\n"
        "0 \"compute\" \"0W0\" 129 134 0 0\n");
}

// Qi et al., arXiv:2401.10241, tables 5 and 9, in which bubble rates are calculated from these times.
TEST_CASE("bubble rates of 1f1b and zb_h1 are the published ones") {
  struct Row {
    int stages, microbatches;
    double forward_ms, input_gradient_ms, weight_gradient_ms, transfer_ms;
    double one_f_one_b, zb_h1;
  };
  const auto nanoseconds = [](double ms) { return std::llround(ms * 1e6); };
  for (const Row& row : {Row{8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585},       // 1.5B
                         Row{8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323},      // 6.2B
                         Row{8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045},      // 6.2B
                         Row{16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397},      // 14.6B
                         Row{32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421},      // 28.3B
                         Row{32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1106}}) {  // 28.3B
    const ActionTimes times = {nanoseconds(row.forward_ms), nanoseconds(row.input_gradient_ms),
                               nanoseconds(row.weight_gradient_ms), nanoseconds(row.transfer_ms)};
    const auto to_four = [&](std::string_view name) {
      return std::round(largest_bubble(name, row.stages, row.microbatches, times).rate() * 1e4) / 1e4;
    };
    CHECK(to_four("1f1b") == row.one_f_one_b);
    CHECK(to_four("zb_h1") == row.zb_h1);
  }
}

TEST_CASE("with equal passes and no transfers zb_h2 and zbv never wait, from 2p - 1 micro-batches") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int microbatches = 1; microbatches <= 24; ++microbatches)
      for (const char* name : {"zb_h2", "zbv"}) {
        CAPTURE(name);
        CAPTURE(ranks);
        CAPTURE(microbatches);
        CHECK((largest_bubble(name, ranks, microbatches, kEqual).nanoseconds == 0) ==
              (microbatches >= 2 * ranks - 1));
      }
}

// The same tasks, but what may share the device is one task: of a pair neither is done before the other.
static Tasks with_pairs_as_one(Tasks tasks, const schedule::Timeline& timeline) {
  std::map<std::string, std::size_t> computing;
  for (std::size_t i = 0; i < tasks.tasks.size(); ++i)
    if (tasks.streams[static_cast<std::size_t>(tasks.tasks[i].stream)].name == "compute")
      computing[tasks.tasks[i].name] = i;
  for (const auto& row : timeline.actions)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i].with_next) continue;
      Task& first = tasks.tasks[computing.at(to_text(row[i]))];
      Task& second = tasks.tasks[computing.at(to_text(row[i + 1]))];
      first.after.insert(first.after.end(), second.after.begin(), second.after.end());
      first.nanoseconds += second.nanoseconds;
      second.nanoseconds = 0;
    }
  return tasks;
}

// Published: (p - 1)(F&B + B - 3W), where F&B is a pair and B a whole backward. One after the other they give
// what they have made earlier, and ranks wait half as long.
TEST_CASE(
    "dualpipev waits as published where a pair is one, and half of it where not, from 2p micro-batches") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int microbatches = 2 * ranks; microbatches <= 24; ++microbatches) {
      const schedule::Timeline timeline = schedule::named("dualpipev").build(ranks, microbatches);
      const Tasks tasks = with_pairs_as_one(tasks_of(timeline, kEqual), timeline);
      const std::vector<Bubble> found = bubbles(tasks, play(tasks), "compute");
      CHECK(std::ranges::max(found, {}, &Bubble::nanoseconds).nanoseconds == (ranks - 1) * (3 + 2 - 3));
      CHECK(largest_bubble(timeline, kEqual).nanoseconds == ranks - 1);
    }
}

TEST_CASE("bubbles of the older schedules are what their formulas say") {
  const std::int64_t f = 4, w = 3, b = 5 + w;
  const ActionTimes times = {.forward = f, .input_gradient = b - w, .weight_gradient = w};
  for (const std::int64_t p : {1, 2, 4, 8}) {
    const auto bubble = [&](std::string_view name) {
      return largest_bubble(name, static_cast<int>(p), 16, times).nanoseconds;
    };
    CHECK(bubble("gpipe") == (p - 1) * (f + b));
    CHECK(bubble("1f1b") == (p - 1) * (f + b));
    CHECK(bubble("eager_1f1b") == (p - 1) * (f + b));
    CHECK(bubble("interleaved_1f1b") == (p - 1) * (f + b));  // of a stage, which is half a rank's share
    CHECK(bubble("looped_bfs") == (p - 1) * (f + b));
    CHECK(bubble("zb_h1") == (p - 1) * (f + b - 2 * w));
  }
}
