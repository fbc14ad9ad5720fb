// SPDX-License-Identifier: Apache-2.0
// Which samples a step trains on: arithmetic on (seed, epoch, step, rank, ranks), so any step can be had
// again, by any number of ranks, with nothing kept but how many samples were consumed.
//
//   position   0  1  2  3  4 | 5  6  7  8  9 | 10 …        five samples, batches of four
//   epoch      0             | 1             | 2
//   sample     3  0  4  1  2 | 1  3  2  4  0 | …           a permutation an epoch
//   step       0  0  0  0  1   1  1  1  2  2   2 …
//   of 2 ranks 0  0  1  1  0   0  1  1  0  0   1 …
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::data {

struct Order {
  std::uint64_t seed = 0;
  std::int64_t num_samples = 0;
};

// The sample at a position of the endless row of epochs: in each, every sample once, in an order of its own.
std::int64_t sample_at(const Order& order, std::int64_t position);

// What rank `rank` of `ranks` takes of the global batch that begins at `position`. The ranks' parts are the
// batch, in its order, and differ in length by at most one.
std::vector<std::int64_t> samples_of(const Order& order, std::int64_t position, std::int64_t global_batch,
                                     int rank = 0, int ranks = 1);

// Packing: a row of tokens, documents one after the other, is cut into windows of `length` tokens; each
// begins with the last token of the one before, since targets are the inputs moved by one. So every token but
// the first is a target once, but for a rest shorter than a window. Throws InvalidInput when there is less
// than one window.
std::int64_t num_windows(std::int64_t num_tokens, std::int64_t length);
constexpr std::int64_t begin_of_window(std::int64_t window, std::int64_t length) {
  return window * (length - 1);
}

}  // namespace shoal::data
