// SPDX-License-Identifier: Apache-2.0
// Compiled as update_loops.cpp is, for the same reason.
#include "shoal/runtime/state_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "shoal/runtime/vector_clones.h"

namespace shoal::runtime {

using sharding::kStateBlock;

namespace {

struct Codes {
  explicit Codes(bool is_signed) {
    std::vector<double> all = {0, 1};
    double power = 1e-6;
    for (int zeros = 6; zeros >= 0; --zeros, power *= 10) {
      const int count = 1 << ((is_signed ? 6 : 7) - zeros);  // fractions from 0.1 to 1
      for (int i = 0; i < count; ++i) {
        const double share = power * (0.1 + 0.9 * (i + 0.5) / count);
        all.push_back(share);
        if (is_signed) all.push_back(-share);
      }
    }
    std::ranges::sort(all);
    for (std::size_t i = 0; i < 256; ++i) shares[i] = static_cast<float>(all.at(i));
    for (std::size_t i = 0; i < 255; ++i) upto[i] = (shares[i] + shares[i + 1]) / 2;
    if (!is_signed) upto[0] = 0;
    upto[255] = std::numeric_limits<float>::infinity();
    for (const bool is_negative : {false, true})
      for (std::uint32_t key = 0; key <= kLastKey; ++key) {
        const auto size = std::bit_cast<float>((key + (is_negative ? 1U : 0U)) << 16U);
        const auto* const found = std::lower_bound(upto, upto + 255, is_negative ? -size : size);
        first[is_negative ? 1 : 0][key] = static_cast<std::uint8_t>(found - upto);
      }
  }

  // The upper half of a float's bits says all but the last of where it belongs: numbers that share it are
  // closer together than any two codes.
  std::uint8_t code_of(float share) const {
    const auto bits = std::bit_cast<std::uint32_t>(share);
    const std::uint8_t code = first[bits >> 31U][std::min(kLastKey, bits >> 16U & 0x7FFFU)];
    return static_cast<std::uint8_t>(code + (share > upto[code] ? 1 : 0));
  }

  static constexpr std::uint32_t kLastKey = 0x3F80;  // 1
  float shares[256];
  float upto[256];                      // the largest that is no higher code
  std::uint8_t first[2][kLastKey + 1];  // the code of the smallest number with these upper bits, by sign
};

const Codes& codes_of(bool is_signed) {
  static const Codes with_sign(true), without(false);
  return is_signed ? with_sign : without;
}

}  // namespace

const float* shares(bool is_signed) { return codes_of(is_signed).shares; }

template <class T>
[[gnu::always_inline]] inline void load_blocks(const std::uint8_t* __restrict codes, const float* maxima,
                                               bool is_signed, T* __restrict to, std::int64_t size) {
  const float* const shares = codes_of(is_signed).shares;
  for (std::int64_t begin = 0; begin < size; begin += kStateBlock) {
    const T largest = static_cast<T>(*maxima++);
    const std::int64_t end = std::min(size, begin + kStateBlock);
    for (std::int64_t i = begin; i < end; ++i) to[i] = static_cast<T>(shares[codes[i]]) * largest;
  }
}

template <class T>
[[gnu::always_inline]] inline void store_blocks(const T* __restrict from, bool is_signed,
                                                std::uint8_t* __restrict codes, float* maxima,
                                                std::int64_t size) {
  const Codes& all = codes_of(is_signed);
  for (std::int64_t begin = 0; begin < size; begin += kStateBlock) {
    const std::int64_t end = std::min(size, begin + kStateBlock);
    T most = 0;
    for (std::int64_t i = begin; i < end; ++i) most = std::max(most, std::abs(from[i]));
    const auto largest = static_cast<float>(most);
    *maxima++ = largest;
    const T divisor = largest > 0 ? static_cast<T>(largest) : T(1);
    for (std::int64_t i = begin; i < end; ++i) codes[i] = all.code_of(static_cast<float>(from[i] / divisor));
  }
}

template <class T>
[[gnu::always_inline]] inline void load_range(const c10::BFloat16* __restrict from, T* __restrict to,
                                              std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(static_cast<float>(from[i]));
}

SHOAL_VECTOR_CLONES void load_codes(const std::uint8_t* codes, const float* maxima, bool is_signed, float* to,
                                    std::int64_t size) {
  load_blocks(codes, maxima, is_signed, to, size);
}
SHOAL_VECTOR_CLONES void load_codes(const std::uint8_t* codes, const float* maxima, bool is_signed,
                                    double* to, std::int64_t size) {
  load_blocks(codes, maxima, is_signed, to, size);
}
SHOAL_VECTOR_CLONES void store_codes(const float* from, bool is_signed, std::uint8_t* codes, float* maxima,
                                     std::int64_t size) {
  store_blocks(from, is_signed, codes, maxima, size);
}
SHOAL_VECTOR_CLONES void store_codes(const double* from, bool is_signed, std::uint8_t* codes, float* maxima,
                                     std::int64_t size) {
  store_blocks(from, is_signed, codes, maxima, size);
}
SHOAL_VECTOR_CLONES void load_state(const c10::BFloat16* from, float* to, std::int64_t size) {
  load_range(from, to, size);
}
SHOAL_VECTOR_CLONES void load_state(const c10::BFloat16* from, double* to, std::int64_t size) {
  load_range(from, to, size);
}

}  // namespace shoal::runtime
