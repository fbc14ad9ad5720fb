// SPDX-License-Identifier: Apache-2.0
// Where a key lies: the high bits of its hash say which shard, the low 32 which bucket of the shard.
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal::ps {

// A bijection, so that different keys have different hashes. The finalizer of MurmurHash3.
constexpr std::uint64_t mixed(std::uint64_t number) {
  number = (number ^ (number >> 33)) * 0xff51afd7ed558ccdull;
  number = (number ^ (number >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return number ^ (number >> 33);
}

constexpr std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char letter : text) hash = mixed(hash ^ static_cast<unsigned char>(letter));
  return hash;
}

// The place of a hash of 32 bits among `count` ones.
constexpr std::uint32_t scaled(std::uint64_t hash, std::uint32_t count) {
  return static_cast<std::uint32_t>(((hash & 0xffffffffu) * count) >> 32);
}

// The shard of a key among `shards`, a power of two.
constexpr std::uint32_t shard_of(std::uint64_t key, std::uint32_t shards) {
  return static_cast<std::uint32_t>(((mixed(key) >> 32) * shards) >> 32);
}

}  // namespace shoal::ps
