// SPDX-License-Identifier: Apache-2.0
#include "shoal/simulate/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/sharding/collective.h"

namespace shoal::simulate {

using observe::Event;
using observe::Trace;

// Streams; all others have messages.
static constexpr std::string_view kCompute = "compute", kTrainer = "trainer";
static constexpr std::string_view kWait = "wait";  // for messages, which have events of their own

static double seconds(std::int64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

static double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

// What no event covers of the time of `step`.
static double uncovered(const Event& step, std::vector<const Event*> inside) {
  std::ranges::sort(inside, {}, &Event::begin);
  std::int64_t free = 0, at = step.begin;
  for (const Event* event : inside) {
    free += std::max<std::int64_t>(0, event->begin - at);
    at = std::max(at, event->end);
  }
  return seconds(free + std::max<std::int64_t>(0, step.end - at));
}

static bool is_message(const Event& event) { return event.stream != kCompute && event.stream != kTrainer; }

// Messages of a stream go one after the other: what is handed over while another is under way waits for that.
static Trace in_turn(Trace measured) {
  std::map<std::string, std::int64_t> free;  // by stream
  for (Event& event : measured.events) {     // in the order of their ends
    if (!is_message(event)) continue;
    const auto [last, is_first] = free.try_emplace(event.stream, event.begin);
    event.begin = std::max(event.begin, last->second);
    last->second = event.end;
  }
  return measured;
}

static std::vector<const Event*> steps_in(const Trace& measured, std::size_t skip) {
  std::vector<const Event*> steps;
  for (const Event& event : measured.events)
    if (event.stream == kTrainer && event.name == "step") steps.push_back(&event);
  SHOAL_CHECK(steps.size() > skip, InvalidInput, "simulate: the trace has ", steps.size(),
              " steps, and the first ", skip, " are left out. Remedy: a trace of more");
  steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(skip));
  return steps;
}

Trace median_step(const Trace& measured, std::size_t skip) {
  std::vector<const Event*> steps = steps_in(measured, skip);
  std::ranges::stable_sort(steps, {}, [](const Event* step) { return step->end - step->begin; });
  const Event& step = *steps[steps.size() / 2];
  Trace of_step = {.rank = measured.rank};
  for (const Event& event : measured.events)
    if (step.begin <= event.begin && event.end <= step.end) of_step.events.push_back(event);
  return of_step;
}

Comparison compare(const Trace& simulated, const Trace& trace, std::size_t skip) {
  const Trace measured = in_turn(trace);
  const std::vector<const Event*> steps = steps_in(measured, skip);
  Comparison comparison = {.rank = measured.rank, .steps = static_cast<int>(steps.size())};
  std::map<std::string, OpTimes> ops;
  for (const Event& event : simulated.events) {
    if (event.rank != measured.rank || event.name.empty()) continue;
    OpTimes& op = ops[event.name];
    op.is_message = event.stream != kCompute;
    ++op.calls;
    op.simulated += seconds(event.end - event.begin);
  }
  std::int64_t end = 0, begin = 0;
  for (const Event& event : simulated.events) {
    end = std::max(end, event.end);
    begin = std::min(begin, event.begin);
  }
  comparison.simulated = seconds(end - begin);

  std::vector<double> whole, beside;
  std::map<std::string, std::vector<double>> took;  // by op, of each step
  auto next = measured.events.begin();              // events are in the order of their ends
  for (std::size_t number = 0; number < steps.size(); ++number) {
    const Event& step = *steps[number];
    std::vector<const Event*> inside;
    for (; next != measured.events.end() && next->end <= step.end; ++next) {
      if (next->stream == kTrainer || next->begin < step.begin) continue;
      inside.push_back(&*next);
      if (next->name == kWait) continue;
      auto& times = took[next->name];
      times.resize(steps.size());
      times[number] += seconds(next->end - next->begin);
      if (is_message(*next)) ops[next->name].is_message = true;
    }
    whole.push_back(seconds(step.end - step.begin));
    beside.push_back(uncovered(step, std::move(inside)));
  }
  comparison.measured = median(std::move(whole));
  comparison.beside = median(std::move(beside));
  for (auto& [op, times] : took) ops[op].measured = median(std::move(times));
  for (auto& [name, op] : ops) {
    op.op = name;
    comparison.ops.push_back(op);
  }
  std::ranges::stable_sort(comparison.ops, std::ranges::greater{},
                           [](const OpTimes& op) { return std::abs(op.simulated - op.measured); });
  return comparison;
}

std::vector<double> message_times(const Trace& measured) {
  std::vector<double> times;
  for (const Event& event : measured.events)
    if (is_message(event)) times.push_back(static_cast<double>(event.end - event.begin));
  return times;
}

Trace with_message_times(Trace measured, std::span<const double> nanoseconds) {
  std::vector<Event> waits;
  auto next = nanoseconds.begin();
  for (Event& event : measured.events) {
    if (!is_message(event)) continue;
    const std::int64_t begin = event.end - static_cast<std::int64_t>(*next++);
    waits.push_back({.rank = event.rank,
                     .stream = std::string(kCompute),
                     .name = std::string(kWait),
                     .begin = event.begin,
                     .end = begin});
    event.begin = begin;
  }
  measured.events.insert(measured.events.end(), waits.begin(), waits.end());
  std::ranges::stable_sort(measured.events, {}, &Event::end);
  return measured;
}

// Whether the floor of a kernel is nearly all that was said of it.
static bool is_floor(const OpTimes& op, const cost::Kind& kind) {
  constexpr double kMore = 5e-6;  // of a call
  return !op.is_message && op.simulated > 0 && op.simulated < op.calls * (kind.kernel_seconds + kMore);
}

// What a call of those takes of which it is nearly all: the median of calls, each op's as long as they are in the mean.
static double floor_of(std::span<const Comparison> by_size, const cost::Kind& kind) {
  std::vector<std::pair<double, int>> ops;  // seconds of a call, and how many there are
  int left = 0;
  for (const Comparison& comparison : by_size)
    for (const OpTimes& op : comparison.ops) {
      if (!is_floor(op, kind) || op.measured <= 0) continue;
      ops.emplace_back(op.measured / op.calls, op.calls);
      left += op.calls;
    }
  std::ranges::sort(ops);
  left /= 2;
  for (const auto& [each, calls] : ops) {
    left -= calls;
    if (left < 0) return each;
  }
  return kind.kernel_seconds;
}

// Seconds that a call was said to take beside the floor, and how many times as long it took.
static std::optional<std::pair<double, double>> point_of(const OpTimes& op, const cost::Kind& kind,
                                                         double floor) {
  // What is said to take no more than the floor has nothing that could be multiplied.
  const double said = op.simulated - op.calls * kind.kernel_seconds;
  constexpr double kShort = 5e-7, kSlow = 3;  // seconds of a call; of the floor
  if (said <= op.calls * kShort || (is_floor(op, kind) && op.measured < kSlow * op.calls * floor))
    return std::nullopt;
  return std::pair(said / op.calls, (op.measured - op.calls * floor) / said);
}

// Seconds that a call was said to take, and how many times as long it took.
using Points = std::map<double, double>;

// As it was, times as much; of what it knew nothing of a point for each of the sizes, unless they are much the same.
template <typename Key>
static void learn_slower(std::map<Key, cost::Slower>& slower, const std::map<Key, Points>& learned) {
  constexpr double kLeast = 1e-3;  // of what bytes and operations say
  constexpr double kOther = 2;     // times the size of another
  for (const auto& [key, points] : learned) {
    const double times = points.rbegin()->second;
    const auto [known, is_new] = slower.try_emplace(key, std::max(times, kLeast));
    if (!is_new) {
      for (auto& point : known->second.points) point.second = std::max(point.second * times, kLeast);
    } else if (points.rbegin()->first > kOther * points.begin()->first) {
      known->second.points.clear();
      for (const auto& [said, each] : points) known->second.points.emplace_back(said, std::max(each, kLeast));
    }
  }
}

static void learn_messages(cost::Link& link, std::span<const Comparison> by_size) {
  std::map<sharding::Collective, Points> points;
  for (const Comparison& comparison : by_size)
    for (const OpTimes& op : comparison.ops) {
      if (!op.is_message || op.simulated <= 0 || op.measured <= 0) continue;
      const auto collective = sharding::collective_from_text(op.op.substr(op.op.rfind(':') + 1));
      points[collective].emplace(op.simulated / op.calls, op.measured / op.simulated);
    }
  learn_slower(link.slower, points);
}

cost::Cluster learned(cost::Cluster cluster, std::span<const Comparison> by_size, int hosts) {
  const Comparison& first = by_size.front();
  cost::Kind& kind = cluster.kinds.at(cluster.kind_of(first.rank).name);
  learn_messages(hosts > 1 ? cluster.between : cluster.inside, by_size);
  const double floor = floor_of(by_size, kind);
  std::map<std::string, Points> points;  // by op
  for (const Comparison& comparison : by_size)
    for (const OpTimes& op : comparison.ops)
      if (const auto point = op.is_message ? std::nullopt : point_of(op, kind, floor))
        points[op.op].insert(*point);
  learn_slower(kind.slower, points);
  kind.kernel_seconds = floor;
  kind.step_seconds = by_size.back().beside / by_size.back().programs;
  return cluster;
}

cost::Cluster learned_together(cost::Cluster cluster, std::span<const Comparison> by_size) {
  const Comparison& first = by_size.front();
  cost::Kind& kind = cluster.kinds.at(cluster.kind_of(first.rank).name);
  learn_messages(cluster.inside, by_size);
  std::map<std::string, Points> points;  // of ops that nothing was known of
  double said = 0, computing = 0;
  for (const Comparison& comparison : by_size) {
    computing += comparison.measured - comparison.beside;
    for (const OpTimes& op : comparison.ops) {
      const auto point = op.is_message ? std::nullopt : point_of(op, kind, kind.kernel_seconds);
      const bool is_new = point && !kind.slower.contains(op.op);
      if (is_new) points[op.op].insert(*point);
      if (op.is_message)
        computing -= op.measured;
      else
        said += is_new ? op.measured : op.simulated;
    }
  }
  learn_slower(kind.slower, points);
  kind.step_seconds = by_size.back().beside / by_size.back().programs;
  // Of what goes on beside messages a step does not say how long it took.
  if (!cluster.inside.overlaps && computing > said && said > 0)
    kind = slowed(std::move(kind), computing / said);
  return cluster;
}

static std::string line_of(std::string_view what, const char* calls, double simulated, double measured) {
  char text[200];
  std::snprintf(text, sizeof text, "%-40.*s %5s %10.3f ms %10.3f ms", static_cast<int>(what.size()),
                what.data(), calls, 1e3 * simulated, 1e3 * measured);
  std::string line = text;
  if (measured > 0) {
    std::snprintf(text, sizeof text, " %+7.1f %%", 100 * (simulated - measured) / measured);
    line += text;
  }
  return line + "\n";
}

std::string to_text(const Comparison& comparison) {
  char head[200];
  std::snprintf(head, sizeof head, "%-40s %5s %13s %13s\n", "", "calls", "simulated", "measured");
  std::string text = head;
  OpTimes others;
  int more = 0;
  for (const OpTimes& op : comparison.ops) {
    if (std::max(op.simulated, op.measured) > 0.01 * comparison.measured) {
      text += line_of(op.op, std::to_string(op.calls).c_str(), op.simulated, op.measured);
      continue;
    }
    others.simulated += op.simulated;
    others.measured += op.measured;
    ++more;
  }
  if (more > 0) text += line_of(concat(more, " others"), "", others.simulated, others.measured);
  text += line_of("in no op", "", 0, comparison.beside);
  return text + line_of("a step", "", comparison.simulated, comparison.measured);
}

}  // namespace shoal::simulate
