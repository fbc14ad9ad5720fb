// SPDX-License-Identifier: Apache-2.0
// A timeline as PyTorch's pipeline schedules write and read them: a row a rank, commas between actions; an
// empty cell is nothing, and F and B that go together are "(0F3;3B1)OVERLAP_F_B".
#pragma once

#include <string>
#include <string_view>

#include "shoal/schedule/schedule.h"

namespace shoal::schedule {

std::string to_csv(const Timeline& timeline);

// Stages are where their actions are. `microbatches`: the first so many, which a note says; 0: all. Throws
// InvalidInput with `file`, its name, where it has fewer; with row, rank and action where it is no timeline that
// runs, and with how many micro-batches it would.
Timeline from_csv(std::string_view text, std::string_view file, int microbatches = 0);
// Of one that was read, likewise.
Timeline with_microbatches(Timeline timeline, int microbatches, std::string_view file);

}  // namespace shoal::schedule
