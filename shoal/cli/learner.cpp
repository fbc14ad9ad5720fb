// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>

#include <array>

#include "models/models.h"
#include "shoal/base/text.h"
#include "shoal/capture/deferred.h"
#include "shoal/cli/device.h"
#include "shoal/cli/ps_servers.h"
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

std::vector<rewrite::TableSpec> table_specs(const Recipe& recipe) {
  std::vector<rewrite::TableSpec> tables;
  for (const TableSettings& table : recipe.tables) tables.push_back({table.parameters, table.clicks});
  return tables;
}

static TablePlacement placement_of(const TableSettings& table, const Recipe& recipe) {
  static constexpr std::array kInitials = {ps::InitialRule::Constant, ps::InitialRule::Uniform,
                                           ps::InitialRule::Normal};  // by RowsBegin, but the model's
  TablePlacement placement = {
      .parameters = table.parameters,
      .optimizer = ps::RowOptimizer{.rule = table.optimizer,
                                    .rate = table.lr,
                                    .beta1 = table.beta1,
                                    .beta2 = table.beta2,
                                    .epsilon = table.eps,
                                    .start = table.start,
                                    .l1 = table.l1,
                                    .l2 = table.l2},
      .seed = static_cast<std::uint64_t>(recipe.training.seed),
      .admission = {.rule = table.admission, .threshold = static_cast<float>(table.threshold)},
      .scored = table.scored,
      .life = {.show_weight = static_cast<float>(table.show_weight),
               .click_weight = static_cast<float>(table.click_weight),
               .decay = static_cast<float>(table.decay),
               .min_score = static_cast<float>(table.min_score),
               .max_unseen_days = static_cast<std::uint32_t>(table.max_unseen_days),
               .max_rows = static_cast<std::uint64_t>(table.max_rows),
               .max_bytes = static_cast<std::uint64_t>(table.max_bytes),
               .slot_days = ps::parse_slot_days(table.slot_days).value_or(ps::SlotDays()),
               .slot_bits = static_cast<std::uint32_t>(table.slot_bits)},
      .clicks = table.clicks};
  if (table.initial != RowsBegin::Model)
    placement.initial = ps::Initial{.rule = kInitials.at(static_cast<std::size_t>(table.initial) - 1),
                                    .scale = static_cast<float>(table.scale)};
  if (table.dtype == RowType::BFloat16) placement.dtype = DType::BFloat16;
  return placement;
}

static TableOptions tables_of(const Recipe& recipe, ps::Tables* tables) {
  const bool keeps_rows = recipe.ps.mode == ps::Mode::HalfAsync || recipe.ps.prefetch;
  TableOptions options = {
      .tables = tables,
      .exchange = {.mode = recipe.ps.mode,
                   .staleness = static_cast<std::uint32_t>(recipe.ps.staleness),
                   .geo_steps = static_cast<std::uint32_t>(recipe.ps.geo_steps),
                   .cache_rows = keeps_rows ? static_cast<std::size_t>(recipe.ps.cache_rows) : 0,
                   .wire = recipe.ps.wire_dtype == RowType::BFloat16 ? DType::BFloat16 : DType::Float32}};
  options.save_deltas = static_cast<std::uint32_t>(recipe.ps.save_deltas);
  if (tables == nullptr && !recipe.tables.empty()) {
    options.memory_bytes = parse_bytes(recipe.ps.memory).value_or(0);
    options.cold_folder = cold_folder_of(recipe) / "trainer";
  }
  for (const TableSettings& table : recipe.tables) options.placements.push_back(placement_of(table, recipe));
  return options;
}

// The loss, and of an evaluation of yes-or-no targets what AUC is made of.
static LossAndOutputs loss_and_logits(torch::nn::AnyModule& model, const Batch& batch) {
  if (at::GradMode::is_enabled() || !batch["targets"].tensor().is_floating_point())
    return loss_of(model, batch);
  const at::Tensor logits = logits_of(model, batch);
  return {at::binary_cross_entropy_with_logits(logits, batch["targets"].tensor()), {{"logits", logits}}};
}

torch::nn::AnyModule make_model(const Recipe& recipe) {
  return recipe.tables.empty() ? make_model_now(recipe)
                               : deferred_init([&] { return make_model_now(recipe); });
}

torch::nn::AnyModule make_model_now(const Recipe& recipe) {
  at::manual_seed(static_cast<std::uint64_t>(recipe.training.seed));
  torch::nn::AnyModule model = models::make(recipe.model.config);
  if (recipe.training.dtype == FloatType::Float64) model.ptr()->to(at::kDouble);
  if (recipe.precision.master != rewrite::Master::Float32) model.ptr()->to(at::kBFloat16);
  return model;
}

Trainer make_trainer(const Recipe& recipe, const torch::nn::AnyModule& model, observe::Trace* trace,
                     std::optional<Parallelism> parallelism, ps::Tables* tables) {
  return Trainer(model, loss_and_logits, optimizer_of(recipe),
                 {.clip_norm = recipe.training.max_norm,
                  .schedule = schedule_of(recipe),
                  .seed = static_cast<std::uint64_t>(recipe.training.seed),
                  .trace = trace,
                  .parallelism = std::move(parallelism),
                  .tables = tables_of(recipe, tables)});
}

Trainer make_dense_trainer(const Recipe& recipe, const torch::nn::AnyModule& model,
                           std::vector<OptimizerPart> parts) {
  return Trainer(
      view_of(model.ptr(), [own = model](const Batch& batch) mutable { return loss_and_logits(own, batch); }),
      std::move(parts),
      {.clip_norm = recipe.training.max_norm,
       .schedule = schedule_of(recipe),
       .seed = static_cast<std::uint64_t>(recipe.training.seed)});
}

Learner make_learner(const Recipe& recipe, observe::Trace* trace, std::optional<Parallelism> parallelism,
                     ps::Tables* tables) {
  torch::nn::AnyModule model = make_model(recipe);
  model.ptr()->to(device_of(recipe));
  Trainer trainer = make_trainer(recipe, model, trace, std::move(parallelism), tables);
  return {std::move(model), std::move(trainer)};
}

}  // namespace shoal::cli
