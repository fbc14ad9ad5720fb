// SPDX-License-Identifier: Apache-2.0
// Optimizer state that is kept in another type than its parameter's, a few elements at a time.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace shoal::runtime {

inline constexpr std::int64_t kStateBuffer = 1024;  // elements of a state that an update has on the stack

void load_state(const c10::BFloat16* from, float* to, std::int64_t size);
void load_state(const c10::BFloat16* from, double* to, std::int64_t size);
// To the nearest, to even.
void store_state(const float* from, c10::BFloat16* to, std::int64_t size);
void store_state(const double* from, c10::BFloat16* to, std::int64_t size);

template <class T>
void load_state(const c10::BFloat16* from, T* to, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(static_cast<float>(from[i]));
}
template <class T>
void store_state(const T* from, c10::BFloat16* to, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = c10::BFloat16(static_cast<float>(from[i]));
}

}  // namespace shoal::runtime
