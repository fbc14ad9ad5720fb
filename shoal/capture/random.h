// SPDX-License-Identifier: Apache-2.0
// Random operators of ATen, as draws from Shoal's counter-based generators.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::capture {

// A node's operator and arguments, without seed, step and ordinal.
struct Draw {
  std::string op;                       // "shoal::bernoulli"
  std::vector<ir::Argument> arguments;  // its distribution, shape and dtype, in the operator's order
  at::Tensor probabilities;  // of shoal::bernoulli_tensor, which takes its shape from it; else undefined
  std::vector<std::int64_t> shape;
  DType dtype = DType::Float32;
};

// Whether this operator is drawn by draw_of; native_dropout is one that the caller puts together from a draw.
bool is_random(std::string_view op);
Draw draw_of(const c10::FunctionSchema& schema, const torch::jit::Stack& in);

}  // namespace shoal::capture
