// SPDX-License-Identifier: Apache-2.0
// Numbers keys in the order in which they come: the first key is 0, each that was not there yet the next one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "shoal/ps/hash.h"

namespace shoal::ps {

class Places {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  Places() = default;
  explicit Places(std::size_t keys) { reserve(keys); }

  // Room for so many more keys.
  void reserve(std::size_t more) {
    const std::size_t wanted = std::bit_ceil(2 * (count_ + more) + 2);
    if (wanted <= table_.size()) return;
    std::vector<Place> old(wanted);
    old.swap(table_);
    for (const Place& place : old)
      if (place.at != kNone) table_[free_place(place.key)] = place;
  }
  void clear() {
    if (count_ > 0) table_.assign(table_.size(), {});
    count_ = 0;
  }

  // There is room for it.
  std::uint32_t of(std::uint64_t key) {
    const std::size_t mask = table_.size() - 1;
    for (std::size_t at = mixed(key) & mask;; at = (at + 1) & mask) {
      Place& place = table_[at];
      if (place.at == kNone) {
        place = {.key = key, .at = count_};
        return count_++;
      }
      if (place.key == key) return place.at;
    }
  }
  // kNone where it is not there.
  std::uint32_t find(std::uint64_t key) const {
    if (count_ == 0) return kNone;
    const std::size_t mask = table_.size() - 1;
    for (std::size_t at = mixed(key) & mask;; at = (at + 1) & mask)
      if (table_[at].at == kNone || table_[at].key == key) return table_[at].at;
  }
  std::uint32_t count() const { return count_; }

 private:
  struct Place {
    std::uint64_t key = 0;
    std::uint32_t at = kNone;
  };

  std::size_t free_place(std::uint64_t key) const {
    std::size_t at = mixed(key) & (table_.size() - 1);
    while (table_[at].at != kNone) at = (at + 1) & (table_.size() - 1);
    return at;
  }

  std::vector<Place> table_;
  std::uint32_t count_ = 0;
};

}  // namespace shoal::ps
