// SPDX-License-Identifier: Apache-2.0
// Two stages a rank in the shape of a V. Most forwards have a backward of another micro-batch beside them
// (&), so that what one sends travels while the other computes; backward is split where ranks would wait.
//
//   0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3&3B1 3F2&0B0 3B2 3F3&0B1 3B3 0I2 0W2 0I3 0W3
//   1F0 2F0 1F1 2F1 1F2 2B0 2F2&1B0 1F3&2B1 2F3&1B1 2B2 1B2 2I3 1I3 2W3 1W3
//
// Of fewer than 2 p micro-batches it is the schedule of 2 p without those that are not there.
// DeepSeek-AI, arXiv:2412.19437, and "DualPipe could be better without the Dual" (Sea AI Lab, 2025).
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

static std::vector<Action> dual_pipe_v_row(int rank, int ranks, int microbatches) {
  const int first = rank, second = 2 * ranks - 1 - rank, after = ranks - 1 - rank;
  Row row(2 * ranks);
  for (int i = 0; i < 2 * after; ++i) row.forward(first);
  for (int i = 0; i <= rank; ++i) {
    row.forward(first);
    row.forward(second);
  }
  for (int i = 0; i < after; ++i) {
    row.input_gradient(second);
    row.weight_gradient();
    row.forward(second);
  }
  for (int i = 0; i <= microbatches - 2 * ranks + rank; ++i) {
    if (i == 0 && after == 0) {  // apart, since the rank before waits for this gradient
      row.forward(first);
      row.backward(second);
    } else {
      row.pair(first, second);
    }
    row.pair(second, first);
  }
  for (int i = 0; i < after; ++i) {
    row.backward(second);
    row.pair(second, first);
  }
  for (int i = 0; i < 2 * (rank + 1); ++i) {  // the later half is split
    const int stage = i % 2 == 0 ? second : first;
    if (i > rank)
      row.input_gradient(stage);
    else
      row.backward(stage);
  }
  for (int i = 0; i < after; ++i) {
    row.weight_gradient();
    row.input_gradient(first);
  }
  while (row.weight_gradients_due()) row.weight_gradient();
  return row.actions();
}

Timeline dual_pipe_v(int ranks, int microbatches, int /*stages_per_rank*/) {
  return in_v("dualpipev", dual_pipe_v_row, ranks, microbatches, 2 * ranks);
}

}  // namespace shoal::schedule
