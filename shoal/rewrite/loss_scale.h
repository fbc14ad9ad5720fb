// SPDX-License-Identifier: Apache-2.0
// Loss scaling (Micikevicius et al., arXiv:1710.03740, section 3.2): backward starts from a multiple of one, so
// that gradients which are small numbers do not vanish in float16, and what it leads to is divided by it again.
//
//   %5 : f32[] = aten::ones_like(self=%4) @backward    |    %6 : f32[] = aten::ones_like(self=%4) @backward
//   …                                                  |    %7 : f32[] = aten::mul.Tensor(self=%6, other=%5) @backward
//   return loss "loss" %4, gradient "w" %9             |    …
//                                                      |    %12 : f32[2] = aten::div.Tensor(self=%11, other=%5) @backward
//                                                      |    return loss "loss" %4, gradient "w" %12
//
// With a power of two for %5, the scalar "loss_scale", both are exact. A gradient that is too large for float16 is
// infinite then, and so are the sums that it is part of.
#pragma once

#include <string_view>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

inline constexpr std::string_view kLossScale = "loss_scale";  // f32 []

// Throws InvalidInput where backward does something to a gradient that is not in proportion to it, as a hook does
// that clips: it would see the multiple. A graph without backward is left as it is.
ir::Graph with_scaled_loss(const ir::Graph& graph);

}  // namespace shoal::rewrite
