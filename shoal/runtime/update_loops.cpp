// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3 -fno-math-errno (CMakeLists.txt): without them g++ leaves the square root, and so the
// loop, scalar, which is five times slower.
#include "shoal/runtime/update_loops.h"

#include "shoal/runtime/vector_clones.h"

namespace shoal::runtime {

SHOAL_VECTOR_CLONES void fast_sgd(float* p, const float* g, float* buffer, std::int64_t size,
                                  const SgdFactors<float>& factors, bool nesterov) {
  sgd_range(p, g, buffer, size, factors, nesterov);
}
SHOAL_VECTOR_CLONES void fast_sgd(double* p, const double* g, double* buffer, std::int64_t size,
                                  const SgdFactors<double>& factors, bool nesterov) {
  sgd_range(p, g, buffer, size, factors, nesterov);
}
SHOAL_VECTOR_CLONES void fast_adam(float* p, const float* g, float* m, float* v, float* largest,
                                   std::int64_t size, const AdamFactors<float>& factors) {
  adam_range(p, g, m, v, largest, size, factors);
}
SHOAL_VECTOR_CLONES void fast_adam(double* p, const double* g, double* m, double* v, double* largest,
                                   std::int64_t size, const AdamFactors<double>& factors) {
  adam_range(p, g, m, v, largest, size, factors);
}
SHOAL_VECTOR_CLONES void fast_adagrad(float* p, const float* g, float* sum, std::int64_t size,
                                      const AdagradFactors<float>& factors) {
  adagrad_range(p, g, sum, size, factors);
}
SHOAL_VECTOR_CLONES void fast_rmsprop(float* p, const float* g, float* square, float* buffer, float* average,
                                      std::int64_t size, const RmspropFactors<float>& factors) {
  rmsprop_range(p, g, square, buffer, average, size, factors);
}
SHOAL_VECTOR_CLONES void fast_lion(float* p, const float* g, float* m, std::int64_t size,
                                   const LionFactors<float>& factors) {
  lion_range(p, g, m, size, factors);
}
SHOAL_VECTOR_CLONES void fast_adagrad(double* p, const double* g, double* sum, std::int64_t size,
                                      const AdagradFactors<double>& factors) {
  adagrad_range(p, g, sum, size, factors);
}
SHOAL_VECTOR_CLONES void fast_rmsprop(double* p, const double* g, double* square, double* buffer,
                                      double* average, std::int64_t size,
                                      const RmspropFactors<double>& factors) {
  rmsprop_range(p, g, square, buffer, average, size, factors);
}
SHOAL_VECTOR_CLONES void fast_lion(double* p, const double* g, double* m, std::int64_t size,
                                   const LionFactors<double>& factors) {
  lion_range(p, g, m, size, factors);
}
SHOAL_VECTOR_CLONES double fast_squares(const float* values, std::int64_t size) {
  return sum_of_squares(values, size);
}
SHOAL_VECTOR_CLONES double fast_squares(const double* values, std::int64_t size) {
  return sum_of_squares(values, size);
}

}  // namespace shoal::runtime
