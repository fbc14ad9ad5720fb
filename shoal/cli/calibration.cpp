// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/calibration.h"

#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/learned_steps.h"
#include "shoal/cli/machine.h"
#include "shoal/cli/operands.h"
#include "shoal/cli/overlap.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/comm/communicator.h"
#include "shoal/comm_c10d/of_hosts.h"
#include "shoal/cost/cluster.h"
#include "shoal/elastic/join.h"
#include "shoal/runtime/product_kernels.h"
#include "shoal/simulate/comparison.h"
#include "shoal/train/half_products.h"

namespace shoal::cli {

using Clock = std::chrono::steady_clock;

Peers::Peers() : job_(elastic::join(elastic::environment_of(environ))) {
  if (size() > 1)
    world_ = comm_c10d::make_of_hosts(job_->store(), {.rank = rank(),
                                                      .first_ranks = job_->first_ranks(),
                                                      .interface = job_->interface(),
                                                      .limit = job_->limit()});
}

int Peers::of_this_host() const {
  const auto& first = first_ranks();
  return static_cast<int>(std::ranges::count(first, first[static_cast<std::size_t>(rank())]));
}

void Peers::meet() const {
  if (world_) world_->barrier()->wait(job_->limit());
}

void Peers::reduce(double* numbers, std::size_t count, comm::ReduceOp op) const {
  if (!world_ || count == 0) return;
  world_
      ->all_reduce({.data = numbers, .count = static_cast<std::int64_t>(count), .dtype = DType::Float64}, op)
      ->wait(job_->limit());
}

double Peers::mean(double number) const {
  reduce(&number, 1, comm::ReduceOp::Sum);
  return number / size();
}

double Peers::most(double number) const {
  reduce(&number, 1, comm::ReduceOp::Max);
  return number;
}

void Peers::least(std::vector<double>& numbers) const {
  reduce(numbers.data(), numbers.size(), comm::ReduceOp::Min);
}

Sample Peers::time(const std::function<void()>& call) const {
  constexpr int kSamples = 9;
  constexpr double kSecondsOfOne = 8e-3;
  call();
  const auto begin = Clock::now();
  call();
  const double once = std::chrono::duration<double>(Clock::now() - begin).count();
  // As many on each rank: what calls others has to be called by them.
  const auto calls = std::max<std::int64_t>(1, std::llround(kSecondsOfOne / std::max(mean(once), 1e-9)));
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    meet();
    const auto start = Clock::now();
    for (std::int64_t n = 0; n < calls; ++n) call();
    samples.push_back(mean(std::chrono::duration<double>(Clock::now() - start).count()) /
                      static_cast<double>(calls));
  }
  std::ranges::sort(samples);
  return {samples[kSamples / 2], (samples[3 * kSamples / 4] - samples[kSamples / 4]) / samples[kSamples / 2]};
}

namespace {

class Calibration {
 public:
  explicit Calibration(const Peers& peers) : peers_(peers) {}

  cost::Cluster run() {
    cost::Cluster cluster;
    cluster.machine = machine();
    kind_.name = "cpu";
    kind_.memory = total_memory_bytes() / peers_.of_this_host();
    measure_floors();
    measure_memory();
    measure_products(DType::Float32, at::kFloat);
    if (!train::product_instructions(DType::BFloat16).empty())
      measure_products(DType::BFloat16, at::kBFloat16);
    cluster.kinds.emplace(kind_.name, kind_);
    add_hosts(cluster);
    if (peers_.size() > 1) measure_links(cluster);
    learn(cluster);
    return cluster;
  }

  double worst_spread() const { return worst_; }

 private:
  void tell(const std::string& what, double value, const char* unit, const Sample& sample) {
    worst_ = std::max(worst_, sample.spread);
    if (peers_.rank() != 0) return;
    char text[160];
    std::snprintf(text, sizeof text, "%-32s %10.2f %-8s spread %4.1f %%", what.c_str(), value, unit,
                  100 * sample.spread);
    say(text);
  }

  void measure_floors() {
    at::Tensor one = at::zeros({1});
    const Sample sample = peers_.time([&] { one.add_(1); });
    kind_.kernel_seconds = sample.seconds;
    tell("a kernel", 1e6 * sample.seconds, "us", sample);
    constexpr std::int64_t kSamples = 32, kHeads = 8;
    const at::Tensor head = at::ones({kSamples, kHeads, 4, 8});
    const Sample attention =
        peers_.time([&] { at::_scaled_dot_product_flash_attention_for_cpu(head, head, head); });
    kind_.head_seconds = attention.seconds / (kSamples * kHeads);
    tell("a head of a sample", 1e6 * kind_.head_seconds, "us", attention);
  }

  void measure_memory() {
    std::vector<std::pair<double, double>> rates;  // bytes, bytes a second
    // Up to 1 << 15 elements LibTorch leaves to one thread, so that what is little more takes no longer.
    for (const int power : {12, 15, 16, 18, 21, 24}) {
      const auto elements = std::int64_t{1} << power;
      std::vector<Operands> all = as_in_a_step(3 * 4 * elements, [&] { return at::ones({elements}); });
      std::size_t next = 0;
      const Sample sample = peers_.time([&] {
        auto& [a, b, sum] = all[next++ % all.size()];
        at::add_out(sum, a, b);
      });
      const auto bytes = static_cast<double>(3 * 4 * elements);
      rates.emplace_back(bytes,
                         bytes / std::max(sample.seconds - kind_.kernel_seconds, 0.1 * sample.seconds));
      tell(concat("memory, ", human_bytes(3 * 4 * elements)), rates.back().second / 1e9, "GB/s", sample);
    }
    kind_.bandwidth = rate_of(rates);
  }

  void measure_products(DType dtype, at::ScalarType type) {
    std::vector<std::pair<double, double>> rates;
    for (const std::int64_t size : {32, 64, 128, 256, 512, 1024}) {
      std::vector<Operands> all =
          as_in_a_step(3 * size * size * static_cast<std::int64_t>(c10::elementSize(type)),
                       [&] { return at::ones({size, size}, type); });
      std::size_t next = 0;
      const Sample sample = peers_.time([&] {
        auto& [a, b, product] = all[next++ % all.size()];
        runtime::multiply(a, b, product);
      });
      const double operations = 2 * std::pow(static_cast<double>(size), 3);
      rates.emplace_back(operations,
                         operations / std::max(sample.seconds - kind_.kernel_seconds, 0.1 * sample.seconds));
      tell(concat("products of ", size, ", ", shoal::name_of(dtype)), rates.back().second / 1e9, "GFLOP/s",
           sample);
    }
    kind_.arithmetic[dtype] = rate_of(rates);
  }

  // The peak is the largest amount's.
  static cost::Rate rate_of(const std::vector<std::pair<double, double>>& rates) {
    cost::Rate rate = {.peak = rates.back().second};
    for (const auto& [amount, each] : rates) rate.shares.emplace_back(amount, each / rate.peak);
    return rate;
  }

  // Of steps that each rank trains alone, all at once, ops of two sizes and what a step takes beside them; then, on one
  // host, of steps that ranks train together their messages, at the pace at which a step has them, what only these do,
  // and how much longer they take, waiting for each other. Between hosts messages go on beside what computes, and are
  // measured so: steps of models that fill no link have them at another pace.
  void learn(cost::Cluster& cluster) const {
    cluster = simulate::learned(cluster, of_all(learned_alone(peers_, cluster)), 1);
    const double alone_seconds = cluster.kinds.at(kind_.name).kernel_seconds;
    if (peers_.size() > 1 && cluster.hosts.size() == 1)
      cluster = simulate::learned_together(cluster, of_all(learned_together(peers_, cluster)));
    if (peers_.rank() != 0) return;
    const cost::Kind& kind = cluster.kinds.at(kind_.name);
    say(concat("learned ", kind.slower.size(), " ops from steps of small models"));
    if (kind.kernel_seconds > alone_seconds) {
      char text[100];
      std::snprintf(text, sizeof text,
                    "a step of ranks that meet takes %.2f times as long as what each computes",
                    kind.kernel_seconds / alone_seconds);
      say(text);
    }
  }

  // Ops as the slowest rank has seen them, since the others wait for it. Messages are alike on all.
  std::vector<simulate::Comparison> of_all(std::vector<simulate::Comparison> comparisons) const {
    for (simulate::Comparison& each : comparisons) {
      std::ranges::sort(each.ops, {}, &simulate::OpTimes::op);  // alike on all
      double computing = 0;
      for (const simulate::OpTimes& op : each.ops) computing += op.is_message ? 0 : op.measured;
      const bool is_slowest = computing == peers_.most(computing);
      for (simulate::OpTimes& op : each.ops)
        op.measured = peers_.most(op.is_message || is_slowest ? op.measured : 0);
      each.measured = peers_.mean(each.measured);
      each.beside = -peers_.most(-each.beside);
    }
    return comparisons;
  }

  void add_hosts(cost::Cluster& cluster) const {
    const auto& first = peers_.first_ranks();
    for (std::size_t rank = 0; rank < first.size(); ++rank)
      if (first[rank] == static_cast<int>(rank))
        cluster.hosts.push_back(
            {kind_.name, static_cast<int>(std::ranges::count(first, static_cast<int>(rank))), 1});
  }

  // Of the ranks of `group`, which is null on those that are alone: these wait for the others.
  double all_reduce_seconds(comm::Communicator* group, std::int64_t bytes, const char* where) {
    std::unique_ptr<comm::Memory> memory;
    if (group != nullptr) {
      memory = group->allocate(bytes);
      std::memset(memory->data(), 0, static_cast<std::size_t>(bytes));
    }
    const Sample sample = peers_.time([&] {
      if (group != nullptr)
        group
            ->all_reduce({.data = memory->data(), .count = bytes / 4, .dtype = DType::Float32},
                         comm::ReduceOp::Sum)
            ->wait(peers_.limit());
    });
    const double seconds = sample.seconds / peers_.mean(group == nullptr ? 0 : 1);
    tell(concat("all-reduce of ", human_bytes(bytes), where), 1e3 * seconds, "ms", sample);
    return seconds;
  }

  // Of an all-reduce of so many parties as price.h has it; `before`: seconds of it that are not on this link.
  cost::Link link_of(comm::Communicator* group, int parties, int sharing, const char* where,
                     const std::function<double(double bytes)>& before) {
    constexpr std::int64_t kSmall = 64, kLarge = 4 << 20;
    constexpr double kLeast = 1e-9;
    const double rounds = 2.0 * (parties - 1);
    const double latency =
        std::max(all_reduce_seconds(group, kSmall, where) - before(kSmall), kLeast) / rounds;
    const double seconds = all_reduce_seconds(group, kLarge, where) - before(kLarge) - rounds * latency;
    const double moved = 2.0 * kLarge * (parties - 1) / parties * sharing;
    return {.latency = latency, .bandwidth = moved / std::max(seconds, kLeast), .is_shared = true};
  }

  // What is between devices of a host first: between hosts is what an all-reduce of all takes beside that.
  void measure_links(cost::Cluster& cluster) {
    const auto& first = peers_.first_ranks();
    const int hosts = static_cast<int>(cluster.hosts.size());
    const int devices = std::ranges::max_element(cluster.hosts, {}, &cost::Host::devices)->devices;
    comm::Communicator* const world = peers_.world();
    if (devices > 1) {
      std::vector<int> here;
      for (std::size_t rank = 0; rank < first.size(); ++rank)
        if (first[rank] == first[static_cast<std::size_t>(peers_.rank())])
          here.push_back(static_cast<int>(rank));
      std::unique_ptr<comm::Communicator> host;
      if (hosts > 1 && here.size() > 1) host = world->subgroup(here);
      comm::Communicator* const group = hosts == 1 ? world : host.get();
      cluster.inside = link_of(group, devices, devices, " within a host", [](double) { return 0; });
      cluster.inside.overlaps = peers_.mean(group != nullptr && group->is_asynchronous() ? 1 : 0) > 0;
    }
    if (hosts == 1) return;
    const auto within = [&](double bytes) {
      const cost::Link& link = cluster.inside;
      return devices == 1 ? 0
                          : 2.0 * (devices - 1) * (link.latency + bytes / link.bandwidth);  // all share it
    };
    cluster.between = link_of(world, hosts, 1, " between hosts", within);
    cluster.between.overlaps = world->is_asynchronous();
    if (!cluster.between.overlaps) return;
    Overlap overlap = measured_overlap(peers_, *world, cluster);
    cluster.between.slower = std::move(overlap.slower);
    cluster.overlap = overlap.kernel.seconds;
    cluster.message_overlap = overlap.message.seconds;
    tell("a kernel beside a message", cluster.overlap, "times", overlap.kernel);
    tell("a message beside kernels", cluster.message_overlap, "times", overlap.message);
  }

  const Peers& peers_;
  cost::Kind kind_;
  double worst_ = 0;
};

}  // namespace

Calibrated calibrated(const Peers& peers) {
  Calibration calibration(peers);
  cost::Cluster cluster = calibration.run();
  return {std::move(cluster), calibration.worst_spread()};
}

}  // namespace shoal::cli
