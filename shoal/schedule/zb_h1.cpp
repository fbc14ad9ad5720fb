// SPDX-License-Identifier: Apache-2.0
// 1F1B whose backwards are split: the gradient that the stage before waits for comes at once, those of the
// weights fill the gaps. Rank i is i weight gradients behind, so that it keeps as much as 1F1B's first rank:
// what p - i backwards and i weight gradients need.
//
//   0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3
//   1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3
//
// Qi et al., arXiv:2401.10241, section 2.
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

Timeline zb_h1(int ranks, int microbatches, int stages_per_rank) {
  Timeline timeline = one_f_one_b(ranks, microbatches, stages_per_rank);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& row = timeline.actions[static_cast<std::size_t>(rank)];
    row = split_backward(row, rank);
  }
  return timeline;
}

}  // namespace shoal::schedule
