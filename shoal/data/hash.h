// SPDX-License-Identifier: Apache-2.0
// Two small hashes whose values are part of what a run is: they never change with compiler or library.
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal::data {

// FNV-1a, continued from `seed`.
inline std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed = 14695981039346656037ULL) {
  for (const char c : bytes) seed = (seed ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return seed;
}

// SplitMix64's mixer: near inputs give unrelated outputs. Steele et al., OOPSLA 2014.
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace shoal::data
