// SPDX-License-Identifier: Apache-2.0
// Forwards until the first gradient comes back, then one backward a forward: rank i keeps the activations of
// at most p - i micro-batches.
//
//   0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
//   1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
//   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
//
// Narayanan et al., arXiv:2006.09503 (the flushing one).
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

Timeline one_f_one_b(int ranks, int microbatches, int /*stages_per_rank*/) {
  Timeline timeline = {.rank_of_stage = looped_stages(ranks, 1)};
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<Part> parts = in_order(rank, microbatches);
    timeline.actions.push_back(by_turns(parts, parts, ranks - 1 - rank));
  }
  return timeline;
}

}  // namespace shoal::schedule
