// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/overlap.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "shoal/cli/operands.h"
#include "shoal/cost/price.h"
#include "shoal/runtime/product_kernels.h"

namespace shoal::cli {

using Clock = std::chrono::steady_clock;
using sharding::Collective;

namespace {

struct Both {
  double alone = 0;   // seconds of a message by itself
  double beside = 0;  // seconds of one while kernels are under way
  double kernel = 1;  // how many times as long these take
};

class Overlapping {
 public:
  Overlapping(const Peers& peers, comm::Communicator& world) : peers_(peers), world_(world) {}

  // Of so many messages, one right after the other.
  Both times_of(const std::function<std::unique_ptr<comm::Work>()>& call, std::int64_t calls) {
    constexpr std::size_t kSamples = 3;
    std::vector<Both> samples;
    for (std::size_t i = 0; i < kSamples; ++i) {
      int products = 0;
      const double both = seconds([&] {
        message(call, calls, [&](comm::Work& last) {
          const auto limit = Clock::now() + peers_.limit();  // a rank that is gone wait() tells
          for (; !last.done() && Clock::now() < limit; ++products) multiply();
        });
      });
      const double alone = seconds([&] { message(call, calls, [](comm::Work&) {}); });
      const double kernels = seconds([&] {
        for (int n = 0; n < products; ++n) multiply();
      });
      const auto each = static_cast<double>(calls);
      samples.push_back({peers_.mean(alone) / each, peers_.mean(both) / each,
                         peers_.mean(products > 0 ? both / kernels : 1)});
    }
    const auto median = [&](double Both::* of) {
      std::ranges::sort(samples, {}, of);
      return samples[kSamples / 2].*of;
    };
    return {median(&Both::alone), median(&Both::beside), median(&Both::kernel)};
  }

  std::unique_ptr<comm::Work> call(const sharding::Message& message, void* in, void* out) {
    const comm::Buffer from = {in, message.in}, to = {out, message.out};
    switch (message.kind) {
      case Collective::AllGather: return world_.all_gather(from, to);
      case Collective::ReduceScatter: return world_.reduce_scatter(from, to, comm::ReduceOp::Sum);
      default: return world_.all_reduce(to, comm::ReduceOp::Sum);
    }
  }

 private:
  void message(const std::function<std::unique_ptr<comm::Work>()>& call, std::int64_t calls,
               const std::function<void(comm::Work& last)>& meanwhile) {
    std::vector<std::unique_ptr<comm::Work>> under_way;
    for (std::int64_t i = 0; i < calls; ++i) under_way.push_back(call());
    meanwhile(*under_way.back());
    for (const auto& work : under_way) work->wait(peers_.limit());
  }

  double seconds(const std::function<void()>& what) const {
    peers_.meet();
    const auto begin = Clock::now();
    what();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  static constexpr std::int64_t kRows = 128;  // of a matrix
  void multiply() {
    auto& [a, b, product] = operands_[next_++ % operands_.size()];
    runtime::multiply(a, b, product);
  }

  const Peers& peers_;
  comm::Communicator& world_;
  std::vector<Operands> operands_ = as_in_a_step(12 * kRows * kRows, [] { return at::ones({kRows, kRows}); });
  std::size_t next_ = 0;
};

// The median, and how far the middle half of all are apart; never less than 1.
Sample sample_of(std::vector<double> times) {
  std::ranges::sort(times);
  const auto at = [&](std::size_t quarters) { return times[quarters * times.size() / 4]; };
  return {std::max(1.0, at(2)), (at(3) - at(1)) / at(2)};
}

}  // namespace

Overlap measured_overlap(const Peers& peers, comm::Communicator& world, const cost::Cluster& cluster) {
  constexpr std::int64_t kLeast = 1 << 14, kMost = 1 << 20;  // elements of a large one
  constexpr double kSeconds = 0.2;                           // of a large one, on a slow link
  const std::int64_t ranks = peers.size();
  const auto large =
      std::clamp(static_cast<std::int64_t>(kSeconds * cluster.between.bandwidth / 4), kLeast, kMost);
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  const cost::Spread spread = cost::spread_of(all, cluster);
  cost::Cluster near = cluster;  // what of a message is within hosts alone
  near.between = {.latency = 0, .bandwidth = 1e30};
  const auto in = world.allocate(4 * kMost), out = world.allocate(4 * kMost);
  Overlapping overlapping(peers, world);
  Overlap overlap;
  std::vector<double> kernels, messages;
  for (const Collective kind : {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter}) {
    std::vector<std::pair<double, double>> points;
    for (const std::int64_t size : {large / 16, large / 4, large}) {
      const std::int64_t part = std::max<std::int64_t>(1, size / ranks), whole = part * ranks;
      const sharding::Message message = {.kind = kind,
                                         .ranks = peers.size(),
                                         .in = kind == Collective::AllGather ? part : whole,
                                         .out = kind == Collective::ReduceScatter ? part : whole};
      const Both both = overlapping.times_of(
          [&] { return overlapping.call(message, in->data(), out->data()); }, 2 * large / size);
      const double within = cost::seconds_of(message, spread, near);
      const double said = cost::seconds_of(message, spread, cluster) - within;
      points.emplace_back(said, std::max((both.alone - within) / said, 1e-3));
      kernels.push_back(both.kernel);
      messages.push_back(both.beside / both.alone);
    }
    overlap.slower.emplace(kind, cost::Slower(std::move(points)));
  }
  overlap.kernel = sample_of(std::move(kernels));
  overlap.message = sample_of(std::move(messages));
  return overlap;
}

}  // namespace shoal::cli
