// SPDX-License-Identifier: Apache-2.0
// The graph of a bfloat16 model as that of a float32 one whose parameters happen to be bfloat16:
//
//   %0 = parameter "w" : bf16[4, 8]          %0 = parameter "w" : bf16[4, 8]
//   %1 = exp(%0)       : bf16[4, 8]          %1 = _to_copy(%0)  : f32[4, 8]      once for all readers
//                                            %2 = exp(%1)       : f32[4, 8]
//
// What is between is float32, gradients and the loss too; sources, and results that are outputs or replace
// sources, keep their types. Embeddings look up rows before these are converted, and the model's own
// conversions between the two types become nothing.
#pragma once

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

ir::Graph raised(const ir::Graph& graph);

}  // namespace shoal::rewrite
