// SPDX-License-Identifier: Apache-2.0
// What operators give that matter and have no C++ Meta kernel, or a wrong one: a row each.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string_view>
#include <vector>

namespace shoal::capture {

using Metas = std::vector<at::Tensor>;
// Of the operator's arguments, tensors on Meta.
using ShapeFunction = Metas (*)(const torch::jit::Stack&);

// Null where there is none.
ShapeFunction shape_function_of(std::string_view op);
// Of what Shoal runs there by another kernel than the CPU's.
ShapeFunction shape_function_on_cuda(std::string_view op);

}  // namespace shoal::capture
