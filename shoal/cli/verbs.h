// SPDX-License-Identifier: Apache-2.0
// What the command can do. Each prints to standard output, throws Error, and returns the process's exit code.
#pragma once

#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/cli/recipe.h"
#include "shoal/train/trainer.h"

namespace shoal::cli {

inline constexpr int kInterruptedCode = 130;  // 128 + SIGINT, as shells have it
inline constexpr int kTerminatedCode = 143;   // 128 + SIGTERM

// What the command line says besides the recipe.
struct Options {
  int ranks = 0;  // to start, or to plan for; 0: not said
  int max_restarts = 0;
  std::string log_folder;
  std::string plan;         // parallelism.plan
  std::int64_t random = 0;  // strategies to draw
  std::int64_t seed = 0;    // of the first of them
  std::string save_plan;
  bool dry_run = false;
  std::string print_after;  // compile::Settings
  bool measure = false;
  std::vector<std::string> diff;   // two plans to compare: files, or "found"; empty: none
  std::string picture;             // a page to write
  std::vector<std::string> words;  // the recipe's file and the overrides, as they were given
};

// Starts the verb once a rank, on this host, and the recipe's servers beside them. Throws InvalidInput in a process
// that is a rank already.
int start_ranks(const std::string& verb, const Options& options, const Recipe& recipe);

int train(const Recipe& recipe, const Options& options);
int capture(const Recipe& recipe, const Options& options);
int generate(const Recipe& recipe, const Options& options);
int verify(const Recipe& recipe, const Options& options);
int plan(const Recipe& recipe, const Options& options);
int plan_diff(const Recipe& recipe, const Options& options);  // of `plan`, with options.diff

// The recipes that are run: of a diff one with each plan. Throws InvalidInput where it is said with what it has no
// use for.
std::vector<Recipe> recipes_of(const Recipe& recipe, const Options& options);

// Of `shoal checkpoint`. A path is one checkpoint, or a folder of them.
int checkpoint_inspect(const std::vector<std::string>& paths);
int checkpoint_verify(const std::vector<std::string>& paths);
int checkpoint_export(const std::vector<std::string>& paths);  // the checkpoint, and the folder to write

// The recipe's model with fresh weights, drawn by training.seed, and a trainer of it.
struct Learner {
  torch::nn::AnyModule model;
  Trainer trainer;
};
// `trace` is borrowed, and may be null; `tables` too: then the [[tables]] are in this process. With `parallelism`
// called by all ranks at once.
Learner make_learner(const Recipe& recipe, observe::Trace* trace, std::optional<Parallelism> parallelism = {},
                     ps::Tables* tables = nullptr);
// The same in two steps: drawing weights is not for several threads at once.
torch::nn::AnyModule make_model(const Recipe& recipe);      // with [[tables]] deferred
torch::nn::AnyModule make_model_now(const Recipe& recipe);  // whatever it has
Trainer make_trainer(const Recipe& recipe, const torch::nn::AnyModule& model, observe::Trace* trace,
                     std::optional<Parallelism> parallelism, ps::Tables* tables = nullptr);
// Of one device with all parameters in memory, [[tables]] too, whose optimizers are among the parts.
Trainer make_dense_trainer(const Recipe& recipe, const torch::nn::AnyModule& model,
                           std::vector<OptimizerPart> parts);
Optimizer optimizer_of(const Recipe& recipe);
// Names of parameters that are in [[tables]], with '*'.
std::vector<rewrite::TableSpec> table_specs(const Recipe& recipe);

}  // namespace shoal::cli
