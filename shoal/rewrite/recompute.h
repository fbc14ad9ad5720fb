// SPDX-License-Identifier: Apache-2.0
// Memory for time: what forward made and backward reads is let go of, and made again where backward reads it.
//
//   %1 = mm(%x, %w)         @forward "h.0"       %1 = mm(%x, %w)         @forward  "h.0"
//   %2 = gelu(%1)           @forward "h.0"       %2 = gelu(%1)           @forward  "h.0"
//   %3 = mm(%2, %v)         @forward "h.0"       %3 = mm(%2, %v)         @forward  "h.0"
//   …                                            …                                         %1 and %2 are free
//   %7 = mm(t(%2), %6)      @backward "h.0"      %8 = mm(%x, %w)         @backward "h.0"
//                                                %9 = gelu(%8)           @backward "h.0"
//                                                %7 = mm(t(%9), %6)      @backward "h.0"
//
// A copy is the same op on the same values, random ops included, which are functions of their ordinal: the
// numbers are the same to the bit. It is in phase backward, as a checkpoint of the model's own is, and no
// later move merges it with the first. What is written, running statistics say, is what the first one made.
//
// It works on a rank's graph, after partition: there each transfer is a node, and is not repeated unless that
// is asked for. Parameters that are gathered for backward anyway are gathered once for copies and backward.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

enum class RecomputeMode {
  None,
  Full,       // all of a block; what enters it is kept
  Selective,  // all but matrix products, convolutions, attention and LSTM layers
  Auto        // what costs least of what fits in so many bytes (compile/fit.h)
};
std::string_view name_of(RecomputeMode mode);  // "none", "full", "selective", "auto"

struct Recompute {
  RecomputeMode mode = RecomputeMode::None;  // what backward makes again
  // Of Full and Selective: modules by path, each a block; '*' stands for any characters but '.'. None: the
  // outermost ones that are numbered, "h.0", "h.1", …
  std::vector<std::string> modules = {};
  std::int64_t bytes = 0;    // of Auto: activations at once
  bool collectives = false;  // these too, outside of Auto
  friend bool operator==(const Recompute&, const Recompute&) = default;
};

// Values of a graph, by ValueId. Those that lie in the memory of another one go as it does.
using Dropped = std::vector<bool>;

// Values that backward may have made again at all. `gathers_again`: parameters are gathered for backward
// anew; `collectives`: as in Recompute.
Dropped droppable(const ir::Graph& graph, bool gathers_again, bool collectives);

// Which values Full or Selective lets go of. Throws InvalidInput naming a pattern that fits no module of the
// model's, and the nearest path; and where there are no numbered modules and none are named. `model`: a graph of
// all of it, where `graph` is a stage's.
Dropped dropped_by(const Recompute& recompute, const ir::Graph& graph, bool gathers_again,
                   const ir::Graph& model);

// Backward reads copies of what is dropped, each made right before it is read first.
ir::Graph recompute(const ir::Graph& graph, const Dropped& dropped);

}  // namespace shoal::rewrite
