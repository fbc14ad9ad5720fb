// SPDX-License-Identifier: Apache-2.0
// What the command can do. Each prints to standard output, throws Error, and returns the process's exit code.
#pragma once

#include <string>
#include <vector>

#include "shoal/cli/recipe.h"
#include "shoal/train/trainer.h"

namespace shoal::cli {

inline constexpr int kInterruptedCode = 130;  // 128 + SIGINT, as shells have it
inline constexpr int kTerminatedCode = 143;   // 128 + SIGTERM

int train(const Recipe& recipe);
int capture(const Recipe& recipe);
int generate(const Recipe& recipe);

// Of `shoal checkpoint`. A path is one checkpoint, or a folder of them.
int checkpoint_inspect(const std::vector<std::string>& paths);
int checkpoint_verify(const std::vector<std::string>& paths);
int checkpoint_export(const std::vector<std::string>& paths);  // the checkpoint, and the folder to write

// The recipe's model with fresh weights, drawn by training.seed, and a trainer of it.
struct Learner {
  torch::nn::AnyModule model;
  Trainer trainer;
};
Learner make_learner(const Recipe& recipe, observe::Trace* trace);  // `trace` is borrowed, and may be null

}  // namespace shoal::cli
