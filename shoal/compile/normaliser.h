// SPDX-License-Identifier: Apache-2.0
// How much each micro-batch counts, so that several in a row give what all of them at once would. A mean over
// N targets with ignored ones is a sum ÷ a count, and the count of all is the sum of the counts:
//
//   loss of all = Σ count_m · loss_m ÷ Σ count_m        gradients likewise: no count depends on a parameter
#pragma once

#include <optional>
#include <string>

#include "shoal/ir/graph.h"

namespace shoal::compile {

struct Normaliser {
  enum class Kind {
    Value,     // a count that the graph computes from its inputs
    Elements,  // a mean over a number of elements that the shape says
    Sum,       // a sum: there is nothing to divide by
    Equal,     // something else: each micro-batch weighs the same, and the loss is not exactly that of all at
               // once
  };
  Kind kind = Kind::Equal;
  std::optional<ir::ValueId> count;  // of Value
  double elements = 0;               // of Elements
  std::string op;                    // where it was found
};

// Looks at what makes the loss, through ops that only scale or reshape it.
Normaliser normaliser_of(const ir::Graph& graph);
std::string to_text(
    const Normaliser& normaliser);  // "micro-batches weigh as many targets as count (aten::…)"

}  // namespace shoal::compile
