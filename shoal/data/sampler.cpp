// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/sampler.h"

#include "shoal/base/error.h"
#include "shoal/data/hash.h"

namespace shoal::data {

std::vector<std::int64_t> begins(const Windows& windows, std::int64_t step) {
  SHOAL_CHECK(windows.num_tokens >= windows.length, InvalidInput, "the text has ", windows.num_tokens,
              " tokens, fewer than the ", windows.length,
              " of one window (training.seq_len + 1): use more text or a smaller training.seq_len");
  const auto choices = static_cast<std::uint64_t>(windows.num_tokens - windows.length + 1);
  std::vector<std::int64_t> result;
  for (std::int64_t row = 0; row < windows.batch; ++row) {
    const std::uint64_t draw =
        mix(mix(mix(windows.seed) ^ static_cast<std::uint64_t>(step)) ^ static_cast<std::uint64_t>(row));
    result.push_back(
        static_cast<std::int64_t>(draw % choices));  // the remainder's bias is below choices / 2^64
  }
  return result;
}

}  // namespace shoal::data
