// SPDX-License-Identifier: Apache-2.0
// Optimizer state that is kept in another type than its parameter's, a few elements at a time.
//
// In 8 bits it is codes of shares of the largest absolute value in a block: dynamic tree quantisation,
// Dettmers et al., arXiv:2110.02861, section 2.1 and figure 2. After the leading zeros, which are a power of
// ten, and a 1 all bits that are left are a linear fraction, so that large shares are as good as small ones
// are many:
//
//   signed    -0.993 … -0.0000006  0  0.0000006 … 0.979 0.993 1
//   unsigned                       0  0.0000003 … 0.989 0.996 1
//
// A value becomes the nearest share, the lower one of two; but no value above zero becomes an unsigned zero, as
// updates divide by such state's root.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#include "shoal/sharding/state_blocks.h"

namespace shoal::runtime {

inline constexpr std::int64_t kStateBuffer = 1024;  // elements of a state that an update has on the stack
static_assert(kStateBuffer % sharding::kStateBlock == 0);

// What each of the 256 codes stands for, in rising order.
const float* shares(bool is_signed);

void load_state(const c10::BFloat16* from, float* to, std::int64_t size);
void load_state(const c10::BFloat16* from, double* to, std::int64_t size);

// Whole blocks, but for the last of a tensor.
void load_codes(const std::uint8_t* codes, const float* maxima, bool is_signed, float* to, std::int64_t size);
void load_codes(const std::uint8_t* codes, const float* maxima, bool is_signed, double* to,
                std::int64_t size);
void store_codes(const float* from, bool is_signed, std::uint8_t* codes, float* maxima, std::int64_t size);
void store_codes(const double* from, bool is_signed, std::uint8_t* codes, float* maxima, std::int64_t size);

template <class T>
void load_codes(const std::uint8_t* codes, const float* maxima, bool is_signed, T* to, std::int64_t size) {
  float buffer[kStateBuffer];
  load_codes(codes, maxima, is_signed, buffer, size);
  for (std::int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(buffer[i]);
}
template <class T>
void store_codes(const T* from, bool is_signed, std::uint8_t* codes, float* maxima, std::int64_t size) {
  float buffer[kStateBuffer];
  for (std::int64_t i = 0; i < size; ++i) buffer[i] = static_cast<float>(from[i]);
  store_codes(buffer, is_signed, codes, maxima, size);
}

template <class T>
void load_state(const c10::BFloat16* from, T* to, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(static_cast<float>(from[i]));
}

}  // namespace shoal::runtime
