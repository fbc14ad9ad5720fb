// SPDX-License-Identifier: Apache-2.0
// Compiled as update_loops.cpp is, for the same reason.
#include "shoal/runtime/state_blocks.h"

#include "shoal/runtime/vector_clones.h"

namespace shoal::runtime {

template <class T>
[[gnu::always_inline]] inline void load_range(const c10::BFloat16* __restrict from, T* __restrict to,
                                              std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(static_cast<float>(from[i]));
}
template <class T>
[[gnu::always_inline]] inline void store_range(const T* __restrict from, c10::BFloat16* __restrict to,
                                               std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = c10::BFloat16(static_cast<float>(from[i]));
}

SHOAL_VECTOR_CLONES void load_state(const c10::BFloat16* from, float* to, std::int64_t size) {
  load_range(from, to, size);
}
SHOAL_VECTOR_CLONES void load_state(const c10::BFloat16* from, double* to, std::int64_t size) {
  load_range(from, to, size);
}
SHOAL_VECTOR_CLONES void store_state(const float* from, c10::BFloat16* to, std::int64_t size) {
  store_range(from, to, size);
}
SHOAL_VECTOR_CLONES void store_state(const double* from, c10::BFloat16* to, std::int64_t size) {
  store_range(from, to, size);
}

}  // namespace shoal::runtime
