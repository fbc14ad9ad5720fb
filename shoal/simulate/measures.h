// SPDX-License-Identifier: Apache-2.0
// What of the time of a step is communication, and what of that nothing hides.
//
//   compute   |  mm  |          | add |        moving: 10, exposed: 6
//   data         | all_reduce   |
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/simulate/play.h"

namespace shoal::simulate {

struct Communication {
  int rank = 0;
  std::int64_t moving = 0;   // nanoseconds in which a message of the rank is under way
  std::int64_t exposed = 0;  // those of them in which it computes nothing
};

// By rank that is played.
std::vector<Communication> communication(const Tasks& tasks, const std::vector<Span>& spans);

}  // namespace shoal::simulate
