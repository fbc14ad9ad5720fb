// SPDX-License-Identifier: Apache-2.0
// Optimizers and learning-rate schedules as plain values; the Trainer appends their update to the captured
// graph.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal {

// Some of the parameters, with settings of their own. A parameter belongs to the first group that has it;
// those in no group take the optimizer's own settings. `lr` scales with the schedule as the optimizer's does.
struct ParameterGroup {
  std::function<bool(const std::string& name, const ir::TensorType& type)> contains;
  std::optional<double> lr;
  std::optional<double> weight_decay;
};

// Weight decay for matrices only: norms, biases and other tensors of fewer than two dims go without, as GPT-2
// was trained.
std::vector<ParameterGroup> no_decay_below_two_dims();

// torch::optim::SGD: weight decay added to the gradient, momentum buffer, Nesterov's look-ahead.
struct SGD {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  std::vector<ParameterGroup> groups = {};
};

// torch::optim::Adam; Kingma & Ba, arXiv:1412.6980, algorithm 1; weight decay is added to the gradient.
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  std::vector<ParameterGroup> groups = {};
};

// torch::optim::AdamW; Loshchilov & Hutter, arXiv:1711.05101, algorithm 2; weight decay is decoupled.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  std::vector<ParameterGroup> groups = {};
};

using Optimizer = std::variant<SGD, Adam, AdamW>;

// A factor on every learning rate. Warm-up rises linearly over `warmup_steps` (step 1 gets 1/warmup_steps);
// cosine then falls to `min_factor` at `total_steps` (Loshchilov & Hutter, arXiv:1608.03983, without
// restarts).
struct LearningRateSchedule {
  enum class Decay { Constant, Cosine };
  Decay decay = Decay::Constant;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  // needed by cosine
  double min_factor = 0;
};

// The factor for update `step`, counted from 1.
double factor(const LearningRateSchedule& schedule, std::int64_t step);

}  // namespace shoal
