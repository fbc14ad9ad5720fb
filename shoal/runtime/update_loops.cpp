// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3 -fno-math-errno (CMakeLists.txt): without them g++ leaves the square root, and so the
// loop, scalar, which is five times slower.
#include "shoal/runtime/update_loops.h"

namespace shoal::runtime {

// One copy for each instruction set, the best taken when the program is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define SHOAL_VECTOR_CLONES __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define SHOAL_VECTOR_CLONES
#endif

SHOAL_VECTOR_CLONES void fast_sgd(float* p, const float* g, float* buffer, std::int64_t size,
                                  const SgdFactors<float>& factors, bool nesterov) {
  sgd_range(p, g, buffer, size, factors, nesterov);
}
SHOAL_VECTOR_CLONES void fast_sgd(double* p, const double* g, double* buffer, std::int64_t size,
                                  const SgdFactors<double>& factors, bool nesterov) {
  sgd_range(p, g, buffer, size, factors, nesterov);
}
SHOAL_VECTOR_CLONES void fast_adam(float* p, const float* g, float* m, float* v, std::int64_t size,
                                   const AdamFactors<float>& factors) {
  adam_range(p, g, m, v, size, factors);
}
SHOAL_VECTOR_CLONES void fast_adam(double* p, const double* g, double* m, double* v, std::int64_t size,
                                   const AdamFactors<double>& factors) {
  adam_range(p, g, m, v, size, factors);
}
SHOAL_VECTOR_CLONES double fast_squares(const float* values, std::int64_t size) {
  return sum_of_squares(values, size);
}
SHOAL_VECTOR_CLONES double fast_squares(const double* values, std::int64_t size) {
  return sum_of_squares(values, size);
}

}  // namespace shoal::runtime
