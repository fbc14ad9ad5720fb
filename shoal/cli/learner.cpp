// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>

#include <array>

#include "shoal/cli/device.h"
#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/update.h"

namespace shoal::cli {

static Optimizer chosen_by(const Recipe& recipe) {
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
    case OptimizerName::Adagrad:
      return Adagrad{
          .lr = chosen.lr, .eps = chosen.eps, .weight_decay = chosen.weight_decay, .groups = groups};
    case OptimizerName::RMSprop:
      return RMSprop{.lr = chosen.lr,
                     .alpha = chosen.alpha,
                     .eps = chosen.eps,
                     .weight_decay = chosen.weight_decay,
                     .momentum = chosen.momentum,
                     .centered = chosen.centered,
                     .groups = groups};
    case OptimizerName::Lion:
      return Lion{.lr = chosen.lr,
                  .beta1 = chosen.beta1,
                  .beta2 = chosen.beta2,
                  .weight_decay = chosen.weight_decay,
                  .groups = groups};
    case OptimizerName::LAMB:
      return LAMB{.lr = chosen.lr,
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

Optimizer optimizer_of(const Recipe& recipe) {
  static constexpr std::array kStates = {DType::Float32, DType::BFloat16, DType::UInt8};  // by StateType
  Optimizer optimizer = chosen_by(recipe);
  compile::set_state_dtype(optimizer, kStates.at(static_cast<std::size_t>(recipe.optimizer.state_dtype)));
  return optimizer;
}

static LearningRateSchedule schedule_of(const Recipe& recipe) {
  using Decay = LearningRateSchedule::Decay;
  static constexpr std::array kDecays = {Decay::Constant, Decay::Linear, Decay::Cosine,
                                         Decay::Stable};  // by DecayType
  return {.decay = kDecays.at(static_cast<std::size_t>(recipe.lr_scheduler.decay_type)),
          .warmup_steps = recipe.lr_scheduler.warmup_steps,
          .total_steps = recipe.training.steps,
          .min_factor = recipe.lr_scheduler.min_lr_factor,
          .decay_steps = recipe.lr_scheduler.decay_steps};
}

torch::nn::AnyModule make_model(const Recipe& recipe) {
  at::manual_seed(static_cast<std::uint64_t>(recipe.training.seed));
  torch::nn::AnyModule model = models::make(recipe.model.config);
  if (recipe.training.dtype == FloatType::Float64) model.ptr()->to(at::kDouble);
  if (recipe.precision.master != rewrite::Master::Float32) model.ptr()->to(at::kBFloat16);
  return model;
}

Trainer make_trainer(const Recipe& recipe, const torch::nn::AnyModule& model, observe::Trace* trace,
                     std::optional<Parallelism> parallelism) {
  return Trainer(model, loss_of, optimizer_of(recipe),
                 {.clip_norm = recipe.training.max_norm,
                  .schedule = schedule_of(recipe),
                  .seed = static_cast<std::uint64_t>(recipe.training.seed),
                  .trace = trace,
                  .parallelism = std::move(parallelism)});
}

Learner make_learner(const Recipe& recipe, observe::Trace* trace, std::optional<Parallelism> parallelism) {
  torch::nn::AnyModule model = make_model(recipe);
  model.ptr()->to(device_of(recipe));
  Trainer trainer = make_trainer(recipe, model, trace, std::move(parallelism));
  return {std::move(model), std::move(trainer)};
}

}  // namespace shoal::cli
