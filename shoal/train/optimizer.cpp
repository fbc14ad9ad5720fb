// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/optimizer.h"

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
  const auto length = schedule.total_steps - schedule.warmup_steps;
  SHOAL_CHECK(length > 0, InvalidInput, "schedule: cosine needs total_steps above warmup_steps, got ",
              schedule.total_steps, " and ", schedule.warmup_steps);
  const double progress =
      std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(length));
  return schedule.min_factor + (1 - schedule.min_factor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace shoal
