// SPDX-License-Identifier: Apache-2.0
// Mixed precision (Micikevicius et al., arXiv:1710.03740) of a step whose tensors are float32: products of matrices
// in bfloat16 or float16, the rest as exact as it needs to be. Backward is cast like forward, by the same table:
//
//   lower  products, convolutions, attention: read bfloat16, make bfloat16
//   same   what moves elements, or goes over them one by one: bfloat16 where all that it reads is, else float32
//   full   all other ops: norms, softmax, losses, sums, exponentials, random numbers, updates
//
//   %3 = mm(%1, %2)               %3 : bf16[2, 8] = _to_copy(%1)   once for all that read it so
//   %4 = gelu(%3)                 %4 : bf16[4, 8] = _to_copy(%2)
//   %5 = layer_norm(%4, …)        %5 : bf16[2, 8] = mm(%3, %4)
//                                 %6 : bf16[2, 8] = gelu(%5)
//                                 %7 : f32[2, 8] = _to_copy(%6)
//                                 %8 : f32[2, 8] = layer_norm(%7, …)
//
// Sources and results keep their types: parameters, their gradients and the optimizer's state are float32, and so is
// what a model gives back. A model in float64 or bfloat16 is left alone, but for one whose weights have no
// float32 copy (Master): its graph is raised to float32 first (raised.h).
// The default table is that of PyTorch's autocast on CUDA, and what it has no word for is full; backward, which
// autocast leaves to the types of forward, is by the table, and adds gradients in float32. Float16 ends at 65504 and
// at 6e-8: its loss is scaled (loss_scale.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/dtype.h"
#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// Where the bits of a weight are that a small update changes: in the weight, which is float32; nowhere, and a
// bfloat16 weight is rounded up or down by chance, so that it is right on average; or in a compensation
// beside it, another bfloat16 (Kahan summation).
enum class Master { Float32, None, Kahan };
std::string_view name_of(Master master);  // "kahan"

struct Precision {
  // Of the ops that are lower: BFloat16, Float16, or Float32, where nothing is changed.
  DType compute = DType::Float32;
  std::vector<std::string> lower = {}, full = {};  // ops, "aten::gelu", besides the table or against it
  // Of Float16: what the loss is multiplied by at first, a power of two, and after how many updates in a row that
  // were made it becomes twice that. One that overflows is not made, and halves it.
  double scale = 65536;
  std::int64_t grows_after = 2000;
  Master master = Master::Float32;  // of weights in bfloat16; others are what they are
  // In what ranks reduce float32 gradients: Float32, BFloat16, or Float16 where products are. Ranks add in
  // float32, and what travels is rounded to it.
  DType reduce = DType::Float32;
  friend bool operator==(const Precision&, const Precision&) = default;
};

// Whether a parameter of that type is kept without a float32 copy.
inline bool is_narrow(DType parameter, Master master) {
  return parameter == DType::BFloat16 && master != Master::Float32;
}
// What a parameter's gradient is until the update has read it.
inline DType gradient_type(DType parameter, Master master) {
  return is_narrow(parameter, master) ? DType::Float32 : parameter;
}

// Throws InvalidInput for an op that a training step does not have, or a master that the graph has no
// parameters for. `emulates`: for devices without fast kernels. Operands are rounded, multiplied in float32, and
// what is made is rounded again.
ir::Graph in_precision(const ir::Graph& graph, const Precision& precision, bool emulates = false);

}  // namespace shoal::rewrite
