// SPDX-License-Identifier: Apache-2.0
// A model whose large tensors have shapes and no memory: all that a capture needs, of a model of any size.
#pragma once

#include <torch/nn/modules/container/any.h>

#include <map>
#include <string>

#include "shoal/capture/capture.h"
#include "shoal/cli/recipe.h"
#include "shoal/compile/compile.h"
#include "shoal/ir/graph.h"
#include "shoal/sharding/layout.h"

namespace shoal::cli {

// While it is built nothing is drawn or filled. Neither run it nor save it.
torch::nn::AnyModule hollow_model(const Recipe& recipe);

std::map<std::string, sharding::Shape> shapes_of(const torch::nn::AnyModule& model);  // of its parameters

struct HollowStep {
  ir::Graph graph;  // forward and backward, as captured
  // That a capture takes, an op at a time: small tensors, and what has to run to tell its shapes. An LSTM's
  // layer runs once in a process; it is not among it.
  std::int64_t bytes = 0;
};
// The recipe's training step for so many samples; the model may be a hollow one.
HollowStep captured_step(const Recipe& recipe, const torch::nn::AnyModule& model, std::int64_t samples);

// The forward pass in evaluation of so many samples, with the output "logits". Throws Infeasible where it depends on
// values that it reads.
capture::Captured captured_logits(const Recipe& recipe, const torch::nn::AnyModule& model,
                                  std::int64_t samples);

// What compiles it with its update; `part` is the recipe's optimizer, borrowed.
compile::Settings settings_of(const Recipe& recipe, const OptimizerPart& part,
                              const std::string& print_after);

}  // namespace shoal::cli
