// SPDX-License-Identifier: Apache-2.0
// What the command can do. Each prints to standard output, throws Error, and returns the process's exit code.
#pragma once

#include "shoal/cli/recipe.h"
#include "shoal/train/trainer.h"

namespace shoal::cli {

inline constexpr int kInterruptedCode = 130;  // 128 + SIGINT, as shells have it

int train(const Recipe& recipe);
int capture(const Recipe& recipe);

// The recipe's model with fresh weights, drawn by training.seed, and a trainer of it.
struct Learner {
  torch::nn::AnyModule model;
  Trainer trainer;
};
Learner make_learner(const Recipe& recipe, observe::Trace* trace);  // `trace` is borrowed, and may be null

}  // namespace shoal::cli
