// SPDX-License-Identifier: Apache-2.0
// Random operators of ATen, as draws from Shoal's counter-based generators.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
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
// Numbers the random operators of one run. Code that sets PyTorch's generator back to an earlier state, as
// checkpointing does before it runs a part of the model again, gets the numbers of that time again. The
// generator is left as it was.
class Ordinals {
 public:
  Ordinals();
  ~Ordinals();
  Ordinals(const Ordinals&) = delete;
  Ordinals& operator=(const Ordinals&) = delete;

  std::int64_t next();

 private:
  at::Tensor before_;
  std::unordered_map<std::string, std::int64_t> known_;  // by the generator's state
};
Draw draw_of(const c10::FunctionSchema& schema, const torch::jit::Stack& in);

}  // namespace shoal::capture
