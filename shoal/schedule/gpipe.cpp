// SPDX-License-Identifier: Apache-2.0
// All forwards, then all backwards: every micro-batch's activations are kept at once.
//
//   0F0 0F1 0F2 0B0 0B1 0B2
//   1F0 1F1 1F2 1B0 1B1 1B2
//
// Backwards go in the order of forwards, so that gradients add up in the same order as with every other
// schedule. Huang et al., arXiv:1811.06965.
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

Timeline gpipe(int ranks, int microbatches, int /*stages_per_rank*/) {
  Timeline timeline = {.rank_of_stage = looped_stages(ranks, 1)};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& row = timeline.actions.emplace_back();
    for (int i = 0; i < microbatches; ++i) row.push_back({Kind::Forward, rank, i});
    for (int i = 0; i < microbatches; ++i) row.push_back({Kind::Backward, rank, i});
  }
  return timeline;
}

}  // namespace shoal::schedule
