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
// What is reduced while backward goes on is waited for at its end, so that the last buckets are small: one that has as
// much as what is still to come goes, from 1 MiB on.
//
// A way of several steps (over the replicas, then to parts) is taken step by step by all of a bucket. Float32
// gradients may take it in fewer bytes, in which ranks then add them, each sum rounded once:
//
//   %6 : bf16[4, 4] = _to_copy(%5)          as soon as it is made; of float16, times the loss's scale
//   %7 : bf16[4, 4] = shoal::transfer(tensors=[%6], "all_reduce")
//   %8 : f32[4, 4] = _to_copy(%7)           of float16, divided by it
#pragma once

#include <cstdint>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// `bytes` of whole gradients, as they travel: all ranks have the same buckets. `reduce`: in what float32
// gradients do; Float16 is for losses that are scaled (loss_scale.h). `goes_on`: messages do, while backward does.
ir::Graph buckets(const ir::Graph& local, std::int64_t bytes, DType reduce = DType::Float32,
                  bool goes_on = false);

}  // namespace shoal::rewrite
