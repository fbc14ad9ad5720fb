// SPDX-License-Identifier: Apache-2.0
// A pipeline schedule alone as tasks: what it is worth before there is a model.
#pragma once

#include <cstdint>

#include "shoal/schedule/schedule.h"
#include "shoal/simulate/play.h"

namespace shoal::simulate {

// Of any stage and micro-batch, in nanoseconds.
struct ActionTimes {
  std::int64_t forward = 0;
  std::int64_t input_gradient = 0;
  std::int64_t weight_gradient = 0;  // after the one above, B takes as long as both
  std::int64_t transfer = 0;         // to a stage of another rank
};

// A stream "compute" a rank with its row of the timeline, and for each rank that it sends to one "send to N".
// What shares the device is done one after the other.
Tasks tasks_of(const schedule::Timeline& timeline, const ActionTimes& times);

}  // namespace shoal::simulate
