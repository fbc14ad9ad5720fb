// SPDX-License-Identifier: Apache-2.0
#include "shoal/simulate/comparison.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::simulate {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

observe::Event event(const char* stream, const char* name, std::int64_t begin, std::int64_t end) {
  return {.stream = stream, .name = name, .begin = begin * kMillisecond, .end = end * kMillisecond};
}

// One that captures, and two whose second is slower.
observe::Trace measured() {
  observe::Trace trace;
  trace.events = {event("compute", "mm", 0, 50),      event("trainer", "step", 0, 100),
                  event("compute", "mm", 102, 106),   event("data", "all_reduce", 106, 108),
                  event("compute", "wait", 106, 108), event("trainer", "step", 100, 110),
                  event("compute", "mm", 112, 120),   event("data", "all_reduce", 120, 124),
                  event("compute", "wait", 121, 124), event("compute", "add", 125, 126),
                  event("trainer", "step", 110, 130)};
  return trace;
}

observe::Trace simulated() {
  observe::Trace trace;
  trace.events = {event("compute", "mm", 0, 3), event("compute", "mm", 3, 5),
                  event("data", "all_reduce", 5, 9)};
  observe::Event other = event("compute", "mm", 0, 9);
  other.rank = 1;
  trace.events.push_back(other);
  return trace;
}

TEST_CASE("the step that is drawn is the one of median time, with what lies inside") {
  observe::Trace measured = {.rank = 1};
  for (const auto& [begin, end] :
       {std::pair(0, 900), std::pair(1000, 1100), std::pair(2000, 2300), std::pair(3000, 3200)}) {
    measured.events.push_back({1, "compute", "mm", begin + 10, begin + 50, 0, 7});
    measured.events.push_back({1, "trainer", "step", begin, end});
    measured.events.push_back({1, "compute", "between", end + 10, end + 20});
  }
  const observe::Trace step = median_step(measured, 1);
  REQUIRE(step.events.size() == 2);
  CHECK(step.events[0] == observe::Event{1, "compute", "mm", 3010, 3050, 0, 7});
  CHECK(step.rank == 1);
  CHECK_THROWS_AS(median_step(measured, 4), Error);
}

TEST_CASE("a step is held against what was said of it, by op") {
  const Comparison found = compare(simulated(), measured(), 1);
  CHECK(found.steps == 2);
  CHECK(found.simulated == doctest::Approx(9e-3));
  CHECK(found.measured == doctest::Approx(20e-3));
  CHECK(found.beside == doctest::Approx(7e-3));  // 2 + 1 + 4 of the second, 4 of the first
  REQUIRE(found.ops.size() == 3);
  CHECK(found.ops[0].op == "mm");  // 5 said, 8 measured: the other rank's does not count
  CHECK(found.ops[0].calls == 2);
  CHECK(found.ops[0].simulated == doctest::Approx(5e-3));
  CHECK(found.ops[0].measured == doctest::Approx(8e-3));
  CHECK_FALSE(found.ops[0].is_message);
  CHECK(found.ops[1].op == "add");
  CHECK(found.ops[1].calls == 0);
  CHECK(found.ops[2].op == "all_reduce");
  CHECK(found.ops[2].is_message);
  CHECK(found.ops[2].measured == doctest::Approx(4e-3));
  CHECK(found.off() == doctest::Approx(-0.55));
}

TEST_CASE("a message takes as long as on the rank that comes last, and on others waits before that") {
  CHECK(message_times(measured()) == std::vector<double>{2e6, 4e6});
  const std::vector<double> least = {2e6, 1e6};
  const observe::Trace trace = with_message_times(measured(), least);
  CHECK(message_times(trace) == least);
  CHECK(trace.events.size() == measured().events.size() + 2);
  CHECK(std::ranges::is_sorted(trace.events, {}, &observe::Event::end));
  const Comparison found = compare(simulated(), trace, 1);
  CHECK(found.beside == doctest::Approx(7e-3));  // as before
  const auto op = std::ranges::find(found.ops, "all_reduce", &OpTimes::op);
  REQUIRE(op != found.ops.end());
  CHECK(op->measured == doctest::Approx(2e-3));  // of 2 and 1 the median that compare() takes
}

TEST_CASE("of messages that are under way at once each takes what it does after the one before it") {
  observe::Trace trace;
  trace.events = {event("compute", "mm", 0, 4),        event("data", "all_reduce", 4, 9),
                  event("other", "all_gather", 3, 12), event("data", "all_reduce", 5, 17),
                  event("compute", "wait", 4, 17),     event("trainer", "step", 0, 22)};
  const Comparison found = compare(simulated(), trace, 0);
  const auto measured_of = [&](const char* op) {
    return std::ranges::find(found.ops, op, &OpTimes::op)->measured;
  };
  CHECK(measured_of("all_reduce") == doctest::Approx(13e-3));  // 5 and 8
  CHECK(measured_of("all_gather") == doctest::Approx(9e-3));   // on another stream
  CHECK(found.beside == doctest::Approx(5e-3));
}

TEST_CASE("as text the ops stand in the order of how far they are off, small ones together") {
  CHECK(to_text(compare(simulated(), measured(), 1)) ==
        "                                         calls     simulated      measured\n"
        "mm                                           2      5.000 ms      8.000 ms   -37.5 %\n"
        "add                                          0      0.000 ms      1.000 ms  -100.0 %\n"
        "all_reduce                                   1      4.000 ms      4.000 ms    +0.0 %\n"
        "in no op                                            0.000 ms      7.000 ms  -100.0 %\n"
        "a step                                              9.000 ms     20.000 ms   -55.0 %\n");
}

TEST_CASE("a cluster that has learned from a comparison says what was measured") {
  cost::Cluster cluster;
  cluster.kinds["cpu"] = {.name = "cpu", .kernel_seconds = 1e-3, .slower = {{"mm", 2}}};
  cluster.hosts = {{.kind = "cpu", .devices = 2}};
  cluster.inside = {.latency = 1e-3, .bandwidth = 1e9};
  const Comparison comparison = {
      .beside = 7e-3,
      .ops = {
          {.op = "mm", .calls = 2, .simulated = 6e-3, .measured = 10e-3},
          {.op = "exp", .calls = 1, .simulated = 2e-3, .measured = 0.5e-3},
          {.op = "add", .calls = 3, .simulated = 3e-3, .measured = 6e-3},  // all of it the floor
          {.op = "neg", .calls = 1, .simulated = 1.001e-3, .measured = 2.1e-3},
          {.op = "sort", .calls = 10, .simulated = 10.02e-3, .measured = 920e-3},  // said to be
          {.op = "abs", .calls = 9, .simulated = 9e-3, .measured = 13.5e-3},
          {.op = "shoal::all_reduce", .is_message = true, .calls = 1, .simulated = 4e-3, .measured = 8e-3},
          {.op = "shoal::receive", .is_message = true, .calls = 1, .simulated = 0, .measured = 8e-3}}};
  const cost::Cluster after = learned(cluster, {&comparison, 1}, 1);
  CHECK(after.kind_of(0).kernel_seconds == doctest::Approx(2e-3));  // of 9 x 1.5, 3 x 2, 2.1 and 10 x 92 ms
  CHECK(after.kind_of(0).slower.at("sort").points[0].second == doctest::Approx((920 - 20) / 0.02));
  CHECK_FALSE(after.kind_of(0).slower.contains("neg"));
  CHECK(after.kind_of(0).slower.at("mm").points[0].second ==
        doctest::Approx(3));  // of 4 ms beside the floor it took 6
  CHECK(after.kind_of(0).slower.at("exp").points[0].second == doctest::Approx(1e-3));
  CHECK_FALSE(after.kind_of(0).slower.contains("add"));
  CHECK(after.kind_of(0).step_seconds == doctest::Approx(7e-3));
  REQUIRE(after.inside.slower.size() == 1);
  CHECK(after.inside.slower.at(sharding::Collective::AllReduce) == 2);
  CHECK(learned(after, {&comparison, 1}, 1).inside.slower.at(sharding::Collective::AllReduce) == 4);
  CHECK(learned(cluster, {&comparison, 1}, 2).inside == cluster.inside);  // between hosts it is another link
}

TEST_CASE("of steps of two sizes an op has a point for each, where they differ") {
  cost::Cluster cluster;
  cluster.kinds["cpu"] = {.name = "cpu", .kernel_seconds = 1e-3};
  cluster.hosts = {{.kind = "cpu"}};
  const Comparison large = {.beside = 7e-3,
                            .ops = {{.op = "mm", .calls = 2, .simulated = 22e-3, .measured = 42e-3},
                                    {.op = "gelu", .calls = 1, .simulated = 11e-3, .measured = 31e-3},
                                    {.op = "cat", .calls = 1, .simulated = 11e-3, .measured = 31e-3}}};
  const Comparison small = {.beside = 1e-3,
                            .ops = {{.op = "mm", .calls = 4, .simulated = 8e-3, .measured = 10e-3},
                                    {.op = "gelu", .calls = 1, .simulated = 7e-3, .measured = 31e-3},
                                    {.op = "tanh", .calls = 1, .simulated = 2e-3, .measured = 4e-3}}};
  const std::vector<Comparison> both = {large, small};
  const cost::Cluster after = learned(cluster, both, 1);
  const auto& slower = after.kind_of(0).slower;
  const auto& points = slower.at("mm").points;
  REQUIRE(points.size() == 2);
  CHECK(points[0].first == doctest::Approx(1e-3));
  CHECK(points[0].second == doctest::Approx(1.5));
  CHECK(points[1].first == doctest::Approx(10e-3));
  CHECK(points[1].second == doctest::Approx(2));
  CHECK(slower.at("mm").seconds(5.5e-3) == doctest::Approx(0.5 * (1.5e-3 + 20e-3)));
  for (const char* op : {"gelu", "cat", "tanh"}) {  // of 10 and 6 ms gelu has the larger one's
    REQUIRE(slower.at(op).points.size() == 1);
    CHECK(slower.at(op).seconds(5) == doctest::Approx(15));
  }
  CHECK(after.kind_of(0).step_seconds == doctest::Approx(1e-3));
  // What it knows of both is half as much once it has learned that again.
  const Comparison again = {.ops = {{.op = "mm", .calls = 1, .simulated = 21e-3, .measured = 11e-3}}};
  const auto half = learned(after, {&again, 1}, 1).kind_of(0).slower.at("mm").points;
  CHECK(half[0].second == doctest::Approx(0.75));
  CHECK(half[1].second == doctest::Approx(1));
}

TEST_CASE("of messages of two sizes a link has a point for each") {
  cost::Cluster cluster;
  cluster.kinds["cpu"] = {.name = "cpu", .kernel_seconds = 1e-3};
  cluster.hosts = {{.kind = "cpu", .devices = 2}};
  const auto steps = [](double simulated, double measured) {
    return Comparison{.ops = {{.op = "shoal::all_gather",
                               .is_message = true,
                               .calls = 4,
                               .simulated = simulated,
                               .measured = measured}}};
  };
  const std::vector<Comparison> both = {steps(40e-3, 80e-3), steps(4e-3, 2e-3)};
  const auto gather = learned(cluster, both, 1).inside.slower.at(sharding::Collective::AllGather);
  CHECK(gather.seconds(1e-3) == doctest::Approx(0.5e-3));
  CHECK(gather.seconds(10e-3) == doctest::Approx(20e-3));
}

// What was said of 6 ms of mm took 10, of an op that nothing is known of 9, and of messages 4 ms took 8.
std::vector<Comparison> together(double measured) {
  return {
      {.programs = 2,
       .measured = measured,
       .beside = 4e-3,
       .ops = {{.op = "mm", .calls = 2, .simulated = 6e-3, .measured = 10e-3},
               {.op = "exp", .calls = 2, .simulated = 4e-3, .measured = 9e-3},
               {.op = "all_reduce", .is_message = true, .calls = 1, .simulated = 4e-3, .measured = 8e-3}}}};
}

TEST_CASE("steps that ranks train together say what only these do, and how much longer all takes") {
  cost::Cluster cluster;
  cluster.kinds["cpu"] = {.name = "cpu",
                          .bandwidth = {.peak = 3e9},
                          .kernel_seconds = 0.5e-3,
                          .head_seconds = 1e-3,
                          .arithmetic = {{DType::Float32, {.peak = 3e12}}},
                          .slower = {{"mm", cost::Slower({{1e-3, 2}, {2e-3, 3}})}}};
  cluster.hosts = {{.kind = "cpu", .devices = 2}};
  cluster.inside = {.latency = 1e-3, .bandwidth = 1e9, .overlaps = false};
  // Beside 12 ms of messages and what is in no op 22.5, of which 6 said and 9 new are 15.
  const cost::Cluster after = learned_together(cluster, together(34.5e-3));
  const cost::Kind& kind = after.kind_of(0);
  CHECK(kind.kernel_seconds == doctest::Approx(0.75e-3));
  CHECK(kind.head_seconds == doctest::Approx(1.5e-3));
  CHECK(kind.bandwidth.peak == doctest::Approx(2e9));
  CHECK(kind.arithmetic.at(DType::Float32).peak == doctest::Approx(2e12));
  CHECK(kind.step_seconds == doctest::Approx(2e-3));
  CHECK(kind.slower.at("mm").seconds(1.5 * 1.5e-3) == doctest::Approx(1.5 * 4e-3));
  CHECK(kind.slower.at("exp").seconds(1) == doctest::Approx((9 - 2 * 0.5) / (4 - 2 * 0.5)));
  CHECK(after.inside.slower.at(sharding::Collective::AllReduce) == 2);

  // Ranks that do not wait for each other are no faster than each alone.
  CHECK(learned_together(cluster, together(20e-3)).kind_of(0).bandwidth.peak == 3e9);
  // Where messages go on beside what computes they are not what a step is longer by.
  cluster.inside.overlaps = true;
  CHECK(learned_together(cluster, together(34.5e-3)).kind_of(0).bandwidth.peak == 3e9);
}

TEST_CASE("a trace without steps is refused") {
  CHECK_THROWS_WITH(compare(simulated(), measured(), 3),
                    doctest::Contains("the trace has 3 steps, and the first 3 are left out"));
}

}  // namespace
}  // namespace shoal::simulate
