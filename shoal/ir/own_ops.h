// SPDX-License-Identifier: Apache-2.0
// Shoal's own ops: all that a graph or a program has to know of one is its row here. What it computes is its
// kernel's (runtime/kernels.cpp, runtime/collective_kernels.cpp; a test holds that each row has one), how it
// may be cut its line in sharding/ops.cpp.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace shoal::ir {

struct OwnOp {
  enum class Kind {
    Compute,
    Message,  // one call of a communicator
    Move,     // brings a value to where it is wanted, and leaves it what it is: parts, packing, unpacking
    Random,   // numbers from (seed, step, ordinal, position)
    Update,   // of parameters and state
    Rows,     // reads rows of a table that is elsewhere, or changes them: never twice for once
    Plan,     // says what has to be done, until a rewrite says how: it has no kernel
  };

  std::string_view name;  // "shoal::adam"
  Kind kind = Kind::Compute;
  // Lists of inputs that it writes in place; its first outputs are their items, in this order.
  std::array<std::string_view, 6> writes = {};
  std::string_view lender = {};   // an input whose memory its output may take, where it dies there
  bool is_view = false;           // its outputs are aliases of its first input
  std::string_view message = {};  // of a Message: what is called, "all_reduce"
  bool has_flops = false;         // ir/flops.cpp says how many; else none are counted
};

std::span<const OwnOp> own_ops();               // by name
const OwnOp* find_own_op(std::string_view op);  // null where it is not one of them

}  // namespace shoal::ir
