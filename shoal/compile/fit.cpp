// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/fit.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/compile/stretches.h"
#include "shoal/ir/views.h"
#include "shoal/program/memory.h"

namespace shoal::compile {

using rewrite::Dropped;

static std::int64_t most_activations(const program::Program& program) {
  std::int64_t most = 0;
  for (const auto& segment : program::memory_of(program, 1).activations)
    for (const program::MemoryUse& use : segment) most = std::max(most, use.peak);
  return most;
}

static double work_of_step(const ir::Graph& graph) {
  double work = 0;
  for (const ir::Node& node : graph.nodes)
    if (node.phase != ir::Phase::Update) work += time_of(graph, node);
  return work;
}

namespace {

class Fitting {
 public:
  Fitting(const ir::Graph& local, std::int64_t bytes, bool gathers_again, const Lowering& lowered)
      : local_(local), bytes_(bytes), lowered_(lowered), stretches_(local, gathers_again) {}

  Fit run() {
    best_.step = work_of_step(local_);
    const Tried plain = tried(stretches_.dropped({}));
    best_.kept_all = plain.bytes;
    best_.bound = plain.bytes > bytes_ ? stretches_.bound(bytes_) : 0;
    if (found_) return best_;
    attempt(bytes_);
    const std::int64_t least = least_modelled();
    // What is modelled and what a program takes differ a little: by bisection, the most that may be modelled.
    std::int64_t low = least, high = std::max(plain.bytes, least);
    constexpr int kTries = 7;
    for (int i = 0; i < kTries && low < high; ++i) {
      const std::int64_t middle = low + (high - low) / 2;
      (attempt(middle) ? low : high) = middle;
    }
    for (const int percent : {100, 101, 102, 105, 110, 120})
      if (!found_) attempt(least + (least / 100) * (percent - 100));
    if (!found_)
      throw Unfit(
          concat("recompute: activations are to fit in ", human_bytes(bytes_), " (", bytes_,
                 " bytes), and the least that they take is ", least_tried_, " bytes (",
                 human_bytes(least_tried_), "); without recompute it is ", human_bytes(best_.kept_all),
                 ". Remedy: that number (recompute.bytes), or fewer samples at once"),
          least_tried_);
    return best_;
  }

 private:
  struct Tried {
    std::int64_t bytes;
    bool fits;
  };

  Tried tried(Dropped dropped) {
    const ir::Graph graph = rewrite::recompute(local_, dropped);
    const std::int64_t bytes = most_activations(lowered_(graph));
    least_tried_ = std::min(least_tried_, bytes);
    if (bytes > bytes_) return {bytes, false};
    const double again = work_of_step(graph) - best_.step;
    if (!found_ || again < best_.again) {
      best_.dropped = std::move(dropped);
      best_.bytes = bytes;
      best_.again = again;
    }
    found_ = true;
    return {bytes, true};
  }

  bool attempt(std::int64_t modelled) {
    const auto cuts = stretches_.cheapest(modelled);
    return cuts && tried(stretches_.dropped(*cuts)).fits;
  }

  std::int64_t least_modelled() {
    std::int64_t low = 0, high = best_.kept_all;
    while (!stretches_.can_take(high)) high += high / 4 + 1;
    while (high - low > high / 1000 + 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (stretches_.can_take(middle) ? high : low) = middle;
    }
    return high;
  }

  const ir::Graph& local_;
  const std::int64_t bytes_;
  const Lowering& lowered_;
  Stretches stretches_;
  Fit best_;
  bool found_ = false;
  std::int64_t least_tried_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace

Fit fit(const ir::Graph& local, std::int64_t bytes, bool gathers_again, const Lowering& lowered) {
  return Fitting(local, bytes, gathers_again, lowered).run();
}

}  // namespace shoal::compile
