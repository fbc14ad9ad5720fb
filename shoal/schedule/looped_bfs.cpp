// SPDX-License-Identifier: Apache-2.0
// GPipe with several stages a rank: all micro-batches through a stage before the rank's next one, so that a
// stage's gradients are complete, and can be reduced, long before the others'.
//
//   0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
//   1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1
//
// Lamy-Poirier, arXiv:2211.05953.
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

Timeline looped_bfs(int ranks, int microbatches, int stages_per_rank) {
  Timeline timeline = {.rank_of_stage = looped_stages(ranks, stages_per_rank)};
  const int num_stages = timeline.num_stages();
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& row = timeline.actions.emplace_back();
    for (int stage = rank; stage < num_stages; stage += ranks)
      for (int i = 0; i < microbatches; ++i) row.push_back({Kind::Forward, stage, i});
    for (int stage = num_stages - ranks + rank; stage >= 0; stage -= ranks)
      for (int i = 0; i < microbatches; ++i) row.push_back({Kind::Backward, stage, i});
  }
  return timeline;
}

}  // namespace shoal::schedule
