// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "shoal/base/error.h"

namespace shoal {

std::vector<ParameterGroup> no_decay_below_two_dims() {
  return {{.contains = [](const std::string&, const ir::TensorType& type) { return type.shape.size() < 2; },
           .lr = std::nullopt,
           .weight_decay = 0.0}};
}

double factor(const LearningRateSchedule& schedule, std::int64_t step) {
  using Decay = LearningRateSchedule::Decay;
  SHOAL_CHECK(step >= 1, InvalidInput, "schedule: steps count from 1, not ", step);
  if (step < schedule.warmup_steps)
    return static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  if (schedule.decay == Decay::Constant) return 1;
  const bool is_stable = schedule.decay == Decay::Stable;
  const auto begin = is_stable ? schedule.total_steps - schedule.decay_steps : schedule.warmup_steps;
  const auto length = schedule.total_steps - begin;
  SHOAL_CHECK(length > 0 && begin >= schedule.warmup_steps, InvalidInput,
              "schedule: a decay needs steps after the warm-up, but total_steps is ", schedule.total_steps,
              ", warmup_steps ", schedule.warmup_steps,
              is_stable ? concat(", decay_steps ", schedule.decay_steps) : "");
  const double progress =
      std::clamp(static_cast<double>(step - begin) / static_cast<double>(length), 0.0, 1.0);
  const double left =
      schedule.decay == Decay::Cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  return schedule.min_factor + (1 - schedule.min_factor) * left;
}

}  // namespace shoal
