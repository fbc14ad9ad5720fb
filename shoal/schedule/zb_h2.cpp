// SPDX-License-Identifier: Apache-2.0
// Eager 1F1B whose backwards are split, rank i 2 i weight gradients behind: with passes that take equally
// long no rank ever waits, if there are 2 p - 1 micro-batches, and a rank keeps those of 2 p - 1.
//
//   0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
//   1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3
//
// Qi et al., arXiv:2401.10241, section 2.
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

Timeline zb_h2(int ranks, int microbatches, int stages_per_rank) {
  Timeline timeline = eager_one_f_one_b(ranks, microbatches, stages_per_rank);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& row = timeline.actions[static_cast<std::size_t>(rank)];
    row = split_backward(row, 2 * rank);
  }
  timeline.note = note_of_fewer("zb_h2", microbatches, 2 * ranks - 1);
  return timeline;
}

}  // namespace shoal::schedule
