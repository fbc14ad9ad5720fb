// SPDX-License-Identifier: Apache-2.0
// Random operators of ATen, as draws keyed by seed, step and ordinal.
//
//   dropout, rand, normal_, …       a counter-based draw, whose elements know their place in the whole
//   log_normal_, rrelu, …           elementwise arithmetic on one
//   randperm, multinomial, gamma, … by ATen itself, whole, with a generator of its own for each call
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
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

// Who makes the numbers of one call: nodes while a model is captured, tensors in an eager step.
class Draws {
 public:
  virtual ~Draws() = default;
  virtual at::Tensor draw(const Draw& draw) = 0;
  // By ATen: `op` takes a generator, is given none here, and returns tensors alone.
  virtual std::vector<at::Tensor> draw_whole(const c10::OperatorHandle& op,
                                             const torch::jit::Stack& arguments) = 0;
  [[noreturn]] virtual void refuse(const std::string& what, const std::string& remedy) = 0;
};

// Whether PyTorch says of this operator that it draws; and whether this call of it does: with dropout 0, or
// in evaluation mode, it does not.
bool is_random(const c10::OperatorHandle& op);
bool draws(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> in);

// Replaces the call's arguments on the stack by its results.
void call_random(const c10::OperatorHandle& op, torch::jit::Stack& stack, Draws& by);

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

}  // namespace shoal::capture
