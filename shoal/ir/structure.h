// SPDX-License-Identifier: Apache-2.0
// Whether two graphs are one but for sizes: a model captured with batches of two lengths.
#pragma once

#include <cstdint>

#include "shoal/ir/graph.h"

namespace shoal::ir {

// Equal for graphs that have the same nodes, and differ in shapes, strides and integers alone:
//
//   %2 : f32[4, 8] = aten::view(self=%1, size=[4, 8])       alike
//   %2 : f32[4, 6] = aten::view(self=%1, size=[4, 6])
//   %3 : f32[4, 8] = aten::mul(self=%2, other=0.125)        not: another double
//   %3 : f32[4, 6] = aten::mul(self=%2, other=0.25)
//
// Numbers of dims count, of elements do not; neither do the contents of constants.
std::uint64_t structure_of(const Graph& graph);

}  // namespace shoal::ir
