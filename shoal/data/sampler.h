// SPDX-License-Identifier: Apache-2.0
// Which windows of the text a step trains on: arithmetic on (seed, step), so any step can be had again.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::data {

struct Windows {
  std::uint64_t seed = 0;
  std::int64_t num_tokens = 0;  // of the whole text
  std::int64_t batch = 1;
  std::int64_t length = 1;  // of a window: seq_len + 1, since targets are the inputs moved by one
};

// Where the windows of step `step` begin. Each lies wholly inside the text; every beginning is as likely as
// another. Throws InvalidInput when the text is shorter than one window.
std::vector<std::int64_t> begins(const Windows& windows, std::int64_t step);

}  // namespace shoal::data
