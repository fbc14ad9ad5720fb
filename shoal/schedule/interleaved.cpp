// SPDX-License-Identifier: Apache-2.0
// 1F1B with several stages a rank, which take turns in rounds of as many micro-batches as there are ranks:
// the gaps are as short as a stage, and there are as many as in 1F1B.
//
//   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
//   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
//
// Where micro-batches are not a multiple of ranks, rounds are larger, the first ones by one more; fewer than
// ranks are one round. Narayanan et al., arXiv:2104.04473; rounds of other sizes: Megatron-LM, PyTorch.
#include <algorithm>

#include "shoal/base/error.h"
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

Timeline interleaved(int ranks, int microbatches, int stages_per_rank) {
  Timeline timeline = {.rank_of_stage = looped_stages(ranks, stages_per_rank)};
  const int rounds = std::max(1, microbatches / ranks);
  const int largest = (microbatches + rounds - 1) / rounds;
  if (microbatches < ranks)
    timeline.note = concat("interleaved_1f1b: ", microbatches, " micro-batches are fewer than ", ranks,
                           " ranks, which wait for each other between the stages of a rank");
  else if (microbatches % ranks != 0)
    timeline.note = concat("interleaved_1f1b: ", microbatches, " micro-batches are not a multiple of ", ranks,
                           " ranks: rounds of up to ", largest, ", which keep more activations");
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Part> forwards, backwards;
    for (int round = 0, begin = 0; round < rounds; ++round) {
      const int end = begin + microbatches / rounds + (round < microbatches % rounds ? 1 : 0);
      for (int turn = 0; turn < stages_per_rank; ++turn)
        for (int i = begin; i < end; ++i) {
          forwards.push_back({turn * ranks + rank, i});
          backwards.push_back({(stages_per_rank - 1 - turn) * ranks + rank, i});
        }
      begin = end;
    }
    const int ahead = (stages_per_rank - 1) * largest + 2 * (ranks - 1 - rank);
    timeline.actions.push_back(by_turns(forwards, backwards, ahead));
  }
  return timeline;
}

}  // namespace shoal::schedule
