// SPDX-License-Identifier: Apache-2.0
// A step's forward as a row of nodes, what a stretch of it costs to make again, and the cheapest way to cut it
// into stretches (fit.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/recompute.h"

namespace shoal::compile {

// In bytes that are moved in its time: 10 flops are one.
double time_of(const ir::Graph& graph, const ir::Node& node);

class Stretches {
 public:
  Stretches(const ir::Graph& local, bool gathers_again);

  using Cuts = std::vector<std::size_t>;  // where stretches end
  // At the least work, of those that take no more than so many bytes of activations; none if all take more.
  std::optional<Cuts> cheapest(std::int64_t bytes);
  // Whether there are such, which takes far less time to say.
  bool can_take(std::int64_t bytes);
  // What these cuts let go of; no cuts: nothing but parameters that are gathered again anyway.
  rewrite::Dropped dropped(const Cuts& cuts) const;
  // Whatever is chosen, with each value made at most twice, that much work is done again: at the worst moment
  // the cheapest bytes have to go, parts of a value at a part of its work.
  double bound(std::int64_t bytes) const;

 private:
  // Memory that forward makes.
  struct Item {
    ir::ValueId value;  // that owns it
    std::int64_t bytes = 0;
    std::size_t born = 0, used = 0;  // the node that makes it, the last one that reads it
    std::vector<std::size_t> reads;  // by backward: moments, ascending
    bool may_drop = false;
    bool is_gathered = false;  // a parameter: it is never kept
    bool is_kept() const { return !reads.empty() && !is_gathered; }
  };
  struct Row {                         // of forward, a node that is no view
    std::vector<std::size_t> in, out;  // items
    std::vector<std::size_t> lenders;  // of `in`: those whose memory `out` may take
    double work = 0;
    std::int64_t beside = 0;  // bytes that are live while it runs, other than what backward reads
  };
  struct Moment {                          // a node of backward
    std::int64_t running = 0, before = 0;  // bytes live of what backward makes, while it runs and before
    std::int64_t kept = 0;                 // and of what forward has kept
    std::size_t newest = 0;                // the youngest row of which anything is still read
  };
  struct Option {
    std::int64_t kept = 0, need = 0;  // bytes it keeps; the most it takes beside what was kept before it
    double work = 0;
    bool is_choice = false;
  };

  std::size_t first_item(std::size_t row) const;
  // Which items of the rows from one to another are made again, if that is a stretch.
  std::vector<bool> goes(std::size_t begin, std::size_t end) const;
  Option option(std::size_t begin, std::size_t end) const;
  const Option& cached(std::size_t begin, std::size_t end);

  std::size_t num_values_ = 0;
  std::vector<Item> items_;
  std::vector<Row> rows_;
  std::vector<Moment> moments_;
  std::size_t longest_ = 0;
  std::vector<std::vector<std::optional<Option>>> options_;  // by begin and length
};

}  // namespace shoal::compile
