// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>

#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"

namespace shoal::cli {

static Optimizer optimizer_of(const Recipe& recipe) {
  const auto& chosen = recipe.optimizer;
  const auto groups = no_decay_below_two_dims();
  switch (chosen.name) {
    case OptimizerName::SGD:
      return SGD{.lr = chosen.lr,
                 .momentum = chosen.momentum,
                 .weight_decay = chosen.weight_decay,
                 .nesterov = chosen.nesterov,
                 .groups = groups};
    case OptimizerName::Adam:
      return Adam{.lr = chosen.lr,
                  .beta1 = chosen.beta1,
                  .beta2 = chosen.beta2,
                  .eps = chosen.eps,
                  .weight_decay = chosen.weight_decay,
                  .groups = groups};
    case OptimizerName::AdamW: break;
  }
  return AdamW{.lr = chosen.lr,
               .beta1 = chosen.beta1,
               .beta2 = chosen.beta2,
               .eps = chosen.eps,
               .weight_decay = chosen.weight_decay,
               .groups = groups};
}

static LearningRateSchedule schedule_of(const Recipe& recipe) {
  using Decay = LearningRateSchedule::Decay;
  return {.decay = recipe.lr_scheduler.decay_type == DecayType::Cosine ? Decay::Cosine : Decay::Constant,
          .warmup_steps = recipe.lr_scheduler.warmup_steps,
          .total_steps = recipe.training.steps,
          .min_factor = recipe.lr_scheduler.min_lr_factor};
}

Learner make_learner(const Recipe& recipe, observe::Trace* trace) {
  const auto seed = static_cast<std::uint64_t>(recipe.training.seed);
  at::manual_seed(seed);
  torch::nn::AnyModule model = models::make(recipe.model.config);
  if (recipe.training.dtype == FloatType::Float64) model.ptr()->to(at::kDouble);
  Trainer trainer(
      model, loss_of, optimizer_of(recipe),
      {.clip_norm = recipe.training.max_norm, .schedule = schedule_of(recipe), .seed = seed, .trace = trace});
  return {std::move(model), std::move(trainer)};
}

}  // namespace shoal::cli
