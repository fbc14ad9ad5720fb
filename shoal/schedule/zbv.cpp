// SPDX-License-Identifier: Apache-2.0
// Two stages a rank in the shape of a V, so that the first gradient is made where the first forward was, and
// backward split: with passes that take equally long no rank waits, and none keeps more than 1F1B's first.
//
//   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
//   1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
//
// Of fewer than 2 p - 1 micro-batches it is the schedule of 2 p - 1 without those that are not there.
// Qi et al., arXiv:2401.10241, section 6.
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

static std::vector<Action> zbv_row(int rank, int ranks, int microbatches) {
  const int first = rank, second = 2 * ranks - 1 - rank;
  Row row(2 * ranks);
  const auto both_gradients = [&](int stage) {
    row.input_gradient(stage);
    row.weight_gradient(stage);
  };
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) row.forward(first);
  for (int i = 0; i < rank; ++i) {
    row.forward(second);
    row.forward(first);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    row.forward(second);
    both_gradients(second);
  }
  while (row.forwards(second) < microbatches) {
    if (row.forwards(first) < microbatches) row.forward(first);
    both_gradients(first);
    row.forward(second);
    both_gradients(second);
  }
  for (int i = 0; i < rank; ++i) {
    row.input_gradient(first);
    row.input_gradient(second);
  }
  for (int i = 0; i < ranks - rank; ++i) both_gradients(first);
  for (int i = 0; i < rank; ++i) row.weight_gradient(second);
  for (int i = 0; i < rank; ++i) row.weight_gradient(first);
  return row.actions();
}

Timeline zbv(int ranks, int microbatches, int /*stages_per_rank*/) {
  return in_v("zbv", zbv_row, ranks, microbatches, 2 * ranks - 1);
}

}  // namespace shoal::schedule
