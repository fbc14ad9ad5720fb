// SPDX-License-Identifier: Apache-2.0
// How a batch of keys goes through a table.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "shoal/ps/index.h"

namespace shoal::ps {

// Three short loops a block of keys: the buckets are asked for; the slots are found in them and the rows
// asked for; the rows are used. Short, as a prefetch that misses the TLB holds its place in the processor's
// window: the fewer instructions a key, the more keys are under way.
template <class Home, class Find, class Use>
void in_blocks(std::span<const std::uint64_t> keys, const Home& home, const Find& find, const Use& use) {
  constexpr std::size_t kBlock = 64;
  std::array<const Index::Bucket*, kBlock> homes;
  std::array<std::uint32_t, kBlock> slots;
  for (std::size_t begin = 0; begin < keys.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, keys.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      homes[i] = home(mixed(keys[begin + i]));
      __builtin_prefetch(homes[i]);
    }
    for (std::size_t i = 0; i < count; ++i) slots[i] = find(homes[i], keys[begin + i]);
    for (std::size_t i = 0; i < count; ++i) use(begin + i, slots[i]);
  }
}

inline void prefetch(const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;  // bytes of a cache line
  for (std::size_t at = 0; at < std::min(bytes, 4 * kLine); at += kLine) __builtin_prefetch(from + at);
}

}  // namespace shoal::ps
