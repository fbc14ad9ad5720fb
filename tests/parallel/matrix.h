// SPDX-License-Identifier: Apache-2.0
// One cell of the matrix: a small model trained on one device, and by ranks as threads, and compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/compile/optimizer.h"
#include "shoal/train/verify.h"
#include "tests/oracle/cases.h"

namespace shoal::matrix {

struct Strategy {
  std::string name;
  int replicate = 1, shard = 1, tensor = 1;
  int zero_stage = -1;
  std::string plan = {};  // name of a file in recipes/plans, without what a model's name adds

  int microbatches = 1;  // batches of a step
  int cut = 0;           // into so many micro-batches by the trainer; 0: as many as it takes by itself
  int pipeline = 1;
  std::string schedule = "1f1b";
  int stages_per_rank = 0;  // Plan::stages_per_rank

  int ranks() const { return pipeline * replicate * shard * tensor; }
};

struct Outcome {
  train::Comparison worst;
  std::string error;  // what was thrown; empty if nothing
  // Counted at the communicators of all ranks, in all steps.
  std::int64_t messages = 0, bytes = 0;
  std::string unsaid;    // the first message that is not what its program says; empty if all are
  std::string unplayed;  // the first start that is not where the simulator has it; likewise
  bool is_same() const { return error.empty() && unsaid.empty() && unplayed.empty() && worst.largest <= 1; }
};

// Three steps in float64 with dropout and clipping. The learning rate is LAMB's, Adam's …, 0.01. What they are
// held against is Shoal on one device; or eager LibTorch, which has the same masks and steps with SGD of 0.05.
Outcome run(const cases::ModelCase& model, const Strategy& strategy,
            const Optimizer& optimizer = AdamW{.lr = 0.01, .groups = no_decay_below_two_dims()});

Outcome run_against_eager(const cases::ModelCase& model, const Strategy& strategy);

// Every strategy that there is for the model on so many ranks.
std::vector<Strategy> strategies(const cases::ModelCase& model, int ranks);

std::string plan_text(const std::string& name);

}  // namespace shoal::matrix
