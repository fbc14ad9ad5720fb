// SPDX-License-Identifier: Apache-2.0
// Which parts of a row of bytes are free. What is given back joins the free ones beside it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace shoal {

// One thread at a time.
class FreeRanges {
 public:
  // Where the first free range of so many begins, which is taken then.
  std::optional<std::int64_t> take(std::int64_t bytes);
  // No byte of it is free.
  void give(std::int64_t begin, std::int64_t bytes);

 private:
  std::map<std::int64_t, std::int64_t> ranges_;  // begin to bytes; no two touch
};

}  // namespace shoal
