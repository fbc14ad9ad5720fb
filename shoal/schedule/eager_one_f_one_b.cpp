// SPDX-License-Identifier: Apache-2.0
// 1F1B with twice as many forwards first: what crosses between stages is there before it is waited for, at
// the price of 2 (p - i) - 1 micro-batches' activations on rank i.
//
//   0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
//   1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3
//
// Zhuang et al., arXiv:2211.05322.
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

Timeline eager_one_f_one_b(int ranks, int microbatches, int /*stages_per_rank*/) {
  Timeline timeline = {.rank_of_stage = looped_stages(ranks, 1)};
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<Part> parts = in_order(rank, microbatches);
    timeline.actions.push_back(by_turns(parts, parts, 2 * (ranks - 1 - rank)));
  }
  return timeline;
}

}  // namespace shoal::schedule
