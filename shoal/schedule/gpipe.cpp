// SPDX-License-Identifier: Apache-2.0
// All forwards, then all backwards: every micro-batch's activations are kept at once.
//
//   0F0 0F1 0F2 0B0 0B1 0B2
//   1F0 1F1 1F2 1B0 1B1 1B2
//
// Backwards go in the order of forwards, here and in every schedule, so that gradients add up in one order.
// Huang et al., arXiv:1811.06965.
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

Timeline gpipe(int ranks, int microbatches, int stages_per_rank) {
  return looped_bfs(ranks, microbatches, stages_per_rank);
}

}  // namespace shoal::schedule
