// SPDX-License-Identifier: Apache-2.0
// Gradients on their way to the same places travel together, as soon as so many bytes of them are there, or
// when one of them is read, or when no more come; and parameters that were updated in parts go back to all
// ranks together.
//
//   %5 = mm(…)                                            %5 = mm(…)
//   %6 = shoal::transfer(tensors=[%5], "all_reduce")      %8 = mm(…)
//   %8 = mm(…)                                            %6, %9 = shoal::transfer(tensors=[%5, %8], "all_reduce")
//   %9 = shoal::transfer(tensors=[%8], "all_reduce")
//   return gradient "w" %6, gradient "v" %9               return gradient "w" %6, gradient "v" %9
//
// A way of several steps (over the replicas, then to parts) is taken step by step by all of a bucket.
#pragma once

#include <cstdint>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// `bytes` of whole gradients: all ranks have the same buckets.
ir::Graph buckets(const ir::Graph& local, std::int64_t bytes);

}  // namespace shoal::rewrite
