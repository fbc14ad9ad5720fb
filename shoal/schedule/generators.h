// SPDX-License-Identifier: Apache-2.0
// One function a schedule, each in a file of its own; the table is in schedule.cpp. And where stages lie.
#pragma once

#include <vector>

#include "shoal/schedule/schedule.h"

namespace shoal::schedule {

Timeline gpipe(int ranks, int microbatches, int stages_per_rank);
Timeline one_f_one_b(int ranks, int microbatches, int stages_per_rank);

// Stage s on rank s modulo ranks: 0 1 2 0 1 2.
std::vector<int> looped_stages(int ranks, int stages_per_rank);

}  // namespace shoal::schedule
