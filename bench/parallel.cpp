// SPDX-License-Identifier: Apache-2.0
// A rank of Shoal's for bench/parallel.py, which starts it:
//
//   bench/parallel NAME SHAPE      NAME: data_parallel, zero1, zero2, zero3; pipeline_SCHEDULE;
//                                  data_parallel_in_turn, zero3_in_turn: without overlap
//                                  SHAPE: a table of shapes.toml, as JSON
//
// A line in is a number of steps; out goes JSON, the seconds and the CPU seconds they took, those of each time it
// waited for messages, the loss, and the most memory there was, resident and of tensors and communicators.
// "profile" gives where the time of all steps so far went, by op.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <torch/nn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "models/models.h"
#include "shoal/base/error.h"
#include "shoal/base/held.h"
#include "shoal/comm_c10d/of_hosts.h"
#include "shoal/compile/plan.h"
#include "shoal/elastic/join.h"
#include "shoal/observe/summary.h"
#include "shoal/runtime/allocator.h"
#include "shoal/train/trainer.h"

namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

void forget_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Strategy {
  const char* name;
  int replicate, shard, zero_stage;
  const char* schedule = nullptr;  // of a pipeline of all ranks
  const char* plan = "";
};
constexpr std::array<Strategy, 11> kStrategies = {
    {{"data_parallel", -1, 1, 0},
     {"data_parallel_in_turn", -1, 1, 0, nullptr, "overlap 0"},
     {"zero3_in_turn", 1, -1, 3, nullptr, "overlap 0\nprefetch 0"},
     {"zero1", 1, -1, 1},
     {"zero2", 1, -1, 2},
     {"zero3", 1, -1, 3},
     {"pipeline_1f1b", 1, 1, 0, "1f1b"},
     {"pipeline_gpipe", 1, 1, 0, "gpipe"},
     {"pipeline_interleaved_1f1b", 1, 1, 0, "interleaved_1f1b"},
     {"pipeline_zb_h1", 1, 1, 0, "zb_h1"},
     {"pipeline_zbv", 1, 1, 0, "zbv"}}};

models::Gpt2Config config_of(const json& shape) {
  SHOAL_CHECK(shape.at("model") == "gpt2", InvalidInput, "bench: the model is ", shape.at("model").dump(),
              "; only GPTs are trained in parallel here");
  return {.vocab_size = shape.at("vocabulary"),
          .n_positions = shape.at("sequence"),
          .n_embd = shape.at("width"),
          .n_layer = shape.at("layers"),
          .n_head = shape.at("heads"),
          .embd_pdrop = 0,
          .attn_pdrop = 0,
          .resid_pdrop = 0};
}

// By op and stream: share of the time, nanoseconds a call, calls.
void print_profile(const shoal::observe::Trace& trace) {
  std::map<std::pair<std::string, std::string>, std::pair<std::int64_t, std::int64_t>> sums;
  std::int64_t total = 0;
  for (const auto& event : trace.events) {
    auto& [nanoseconds, calls] = sums[{event.stream, event.name}];
    nanoseconds += event.end - event.begin;
    ++calls;
    if (event.stream == "trainer" && event.name == "step") total += event.end - event.begin;
  }
  std::vector<std::pair<std::int64_t, std::pair<std::string, std::string>>> order;
  for (const auto& [key, sum] : sums) order.emplace_back(-sum.first, key);
  std::ranges::sort(order);
  for (const auto& [nanoseconds, key] : order)
    std::fprintf(stderr, "  %5.1f %%  %9.2f us x %7lld  %-10s %s\n",
                 -100.0 * static_cast<double>(nanoseconds) / static_cast<double>(total),
                 -1e-3 * static_cast<double>(nanoseconds) / static_cast<double>(sums[key].second),
                 static_cast<long long>(sums[key].second), key.first.c_str(), key.second.c_str());
}

// Seconds of each time that messages held up what computes since that event, in the program's order.
std::vector<double> waits_since(const shoal::observe::Trace& trace, std::size_t first) {
  std::vector<double> seconds;
  for (const auto& event : std::span(trace.events).subspan(first))
    if (event.name == "wait") seconds.push_back(1e-9 * static_cast<double>(event.end - event.begin));
  return seconds;
}

void run(const std::string& name, const json& shape) {
  const auto* strategy = std::ranges::find(kStrategies, name, &Strategy::name);
  SHOAL_CHECK(strategy != kStrategies.end(), InvalidInput, "bench: there is no strategy ", name);
  const auto job = shoal::elastic::join(shoal::elastic::environment_of(environ));
  const auto& place = job->place();
  const auto world = job->recorded(shoal::comm_c10d::make_of_hosts(
      job->store(), {.rank = place.rank, .first_ranks = job->first_ranks(), .interface = job->interface()}));
  at::set_num_threads(1);
  const std::int64_t at_start = shoal::observe::memory_now().proportional;

  torch::manual_seed(1);
  models::Gpt2 model(config_of(shape));
  const bool is_staged = strategy->schedule != nullptr;
  torch::manual_seed(is_staged ? 2 : 2 + place.rank);
  const std::array<std::int64_t, 2> size = {shape.at("batch"), shape.at("sequence")};
  const std::int64_t vocabulary = shape.at("vocabulary");
  const shoal::Batch batch{at::randint(vocabulary, size, at::kLong),
                           at::randint(vocabulary, size, at::kLong)};
  const auto loss = [](models::Gpt2& net, const shoal::Batch& rows) {
    return at::cross_entropy_loss(net->forward(rows[0].tensor()).flatten(0, -2), rows[1].tensor().flatten());
  };
  shoal::observe::Trace trace;
  const bool is_traced = shape.contains("trace");
  shoal::Parallelism parallelism;
  parallelism.plan = shoal::compile::plan_from_text(strategy->plan);
  parallelism.mesh =
      shoal::mesh_of(place.size, strategy->replicate, strategy->shard, 1, is_staged ? place.size : 1);
  parallelism.world = world.get();
  parallelism.plan.zero_stage = strategy->zero_stage;
  if (is_staged) {
    parallelism.plan.schedule = strategy->schedule;
    parallelism.plan.microbatches = shape.at("microbatches");
  }
  shoal::Trainer trainer(model, loss, shoal::AdamW{.lr = 1e-3},
                         {.trace = is_traced ? &trace : nullptr, .parallelism = parallelism});
  std::string line;
  bool is_first = true;
  while (std::getline(std::cin, line)) {
    if (line == "profile") {
      print_profile(trace);
      std::cout << "{}" << std::endl;
      continue;
    }
    world->barrier()->wait(job->limit());
    const auto begin = Clock::now();
    const double cpu = cpu_seconds();
    const std::size_t events_before = trace.events.size();
    double last = 0;
    for (std::int64_t left = std::stoll(line); left > 0; --left) last = trainer.step(batch).loss;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::cout << json{{"seconds", seconds},
                      {"waits", waits_since(trace, events_before)},
                      {"cpu", cpu_seconds() - cpu},
                      {"loss", last},
                      {"bytes",
                       shoal::observe::peak_memory_bytes(shoal::observe::memory_now().of_others) - at_start},
                      {"held", shoal::most_held()}}
              << std::endl;
    if (!is_first) continue;
    forget_peak();  // of making the model and its graph
    trace.events.clear();
    is_first = false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    SHOAL_CHECK(argc == 3, InvalidInput, "bench: wanted a strategy and a shape; start bench/parallel.py");
    shoal::runtime::install_allocator();
    run(argv[1], json::parse(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
