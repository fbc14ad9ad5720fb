// SPDX-License-Identifier: Apache-2.0
// Which values backward makes again, so that activations never take more than so many bytes, at the least
// work.
//
// Forward is cut at positions between its nodes. Of a stretch between two cuts, what crosses the later one is
// kept and the rest is made again, so the choice is where to cut:
//
//   exp  mm │ gelu │ mm  add │ norm  mm  …        a stretch of one node: nothing of it is made again
//
// From left to right, a position has a list of pairs (bytes kept before it, work to make the others again),
// none of which is worse in both than another; a stretch is added to a pair where what is kept before it and
// the most that is live while it is made again, and while backward uses it, fit. Where each value is read by
// the next node alone that is every choice there is. Elsewhere the program of a choice says what it takes, and
// by how much its work is above what no choice can do without is said.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shoal/base/error.h"
#include "shoal/ir/graph.h"
#include "shoal/program/program.h"
#include "shoal/rewrite/recompute.h"

namespace shoal::compile {

// Work is counted in bytes that are moved in its time: 10 flops are one.
struct Fit {
  rewrite::Dropped dropped;
  std::int64_t bytes = 0;     // of activations at once, as the program has them
  std::int64_t kept_all = 0;  // likewise, where nothing is made again
  double again = 0;           // work that is done twice
  double bound = 0;           // no choice does less than that
  double step = 0;            // work of forward and backward, where nothing is made again
};

// No choice takes so few bytes.
class Unfit : public Error {
 public:
  Unfit(const std::string& message, std::int64_t least)
      : Error(ErrorKind::Infeasible, message), least_(least) {}
  std::int64_t least() const noexcept { return least_; }  // bytes that would do

 private:
  std::int64_t least_;
};

// What a graph becomes: the moves after recompute.
using Lowering = std::function<program::Program(const ir::Graph&)>;

// Throws Unfit.
Fit fit(const ir::Graph& local, std::int64_t bytes, bool gathers_again, const Lowering& lowered);

}  // namespace shoal::compile
