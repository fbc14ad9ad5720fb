// SPDX-License-Identifier: Apache-2.0
// Rows that a worker has read, by key, and as of which batch. At most so many: when there would be more, all go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "shoal/ps/places.h"

namespace shoal::ps {

class RowCache {
 public:
  RowCache(std::size_t row_bytes, std::size_t most_rows) : row_bytes_(row_bytes), most_rows_(most_rows) {}

  // The row as of batch `from` or later; null where there is none.
  const std::byte* find(std::uint64_t key, std::uint64_t from) const {
    const std::uint32_t at = places_.find(key);
    return at == Places::kNone || as_of_[at] < from + 1 ? nullptr : rows_.data() + at * row_bytes_;
  }
  std::uint64_t as_of(std::uint64_t key) const {
    return as_of_[places_.find(key)] - 1;
  }  // of one that is there

  void put(std::span<const std::uint64_t> keys, std::span<const std::byte> rows, std::uint64_t as_of) {
    if (places_.count() + keys.size() > most_rows_) clear();
    if (keys.size() > most_rows_) return;
    places_.reserve(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t at = places_.of(keys[i]);
      if (at == as_of_.size()) {
        as_of_.push_back(0);
        rows_.resize(rows_.size() + row_bytes_);
      }
      as_of_[at] = as_of + 1;
      std::memcpy(rows_.data() + at * row_bytes_, rows.data() + i * row_bytes_, row_bytes_);
    }
  }
  void drop(std::uint64_t key) {
    if (const std::uint32_t at = places_.find(key); at != Places::kNone) as_of_[at] = 0;
  }
  void clear() {
    places_.clear();
    as_of_.clear();
    rows_.clear();
  }

 private:
  const std::size_t row_bytes_, most_rows_;
  Places places_;
  std::vector<std::uint64_t> as_of_;  // by place; the batch, and 1; 0: no row
  std::vector<std::byte> rows_;
};

}  // namespace shoal::ps
