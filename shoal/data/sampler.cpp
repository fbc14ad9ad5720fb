// SPDX-License-Identifier: Apache-2.0
// The permutation is a Feistel network over the next power of four, walked until it falls among the samples
// (Black and Rogaway, CT-RSA 2002): no list is kept, however many samples there are.
#include "shoal/data/sampler.h"

#include <bit>

#include "shoal/base/error.h"
#include "shoal/data/hash.h"

namespace shoal::data {

static std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t key) {
  constexpr std::uint64_t kRounds = 6;
  const auto half_bits = (std::bit_width(count - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  do {
    std::uint64_t left = index >> half_bits, right = index & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (mix(key ^ mix(right ^ (round << 56))) & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits) | right;
  } while (index >= count);
  return index;
}

std::int64_t sample_at(const Order& order, std::int64_t position) {
  SHOAL_CHECK(order.num_samples > 0, InvalidInput, "sampler: there are no samples");
  const std::int64_t epoch = position / order.num_samples;
  const auto key = mix(mix(order.seed) ^ static_cast<std::uint64_t>(epoch));
  return static_cast<std::int64_t>(permuted(static_cast<std::uint64_t>(position % order.num_samples),
                                            static_cast<std::uint64_t>(order.num_samples), key));
}

std::vector<std::int64_t> samples_of(const Order& order, std::int64_t position, std::int64_t global_batch,
                                     int rank, int ranks) {
  SHOAL_CHECK(rank >= 0 && rank < ranks, InvalidInput, "sampler: rank ", rank, " of ", ranks, " ranks");
  std::vector<std::int64_t> samples;
  const std::int64_t end = position + global_batch * (rank + 1) / ranks;
  for (std::int64_t at = position + global_batch * rank / ranks; at < end; ++at)
    samples.push_back(sample_at(order, at));
  return samples;
}

std::int64_t num_windows(std::int64_t num_tokens, std::int64_t length) {
  SHOAL_CHECK(num_tokens >= length, InvalidInput, "the text has ", num_tokens, " tokens, fewer than the ",
              length, " of one window (training.seq_len + 1): use more text or a smaller training.seq_len");
  return (num_tokens - 1) / (length - 1);
}

}  // namespace shoal::data
