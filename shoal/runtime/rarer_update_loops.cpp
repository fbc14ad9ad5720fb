// SPDX-License-Identifier: Apache-2.0
// Compiled as update_loops.cpp is, for the same reason.
#include "shoal/runtime/rarer_update_loops.h"

#include "shoal/runtime/vector_clones.h"

namespace shoal::runtime {

SHOAL_VECTOR_CLONES void fast_adadelta(float* p, const float* g, float* square, float* delta,
                                       std::int64_t size, const AdadeltaFactors<float>& factors) {
  adadelta_range(p, g, square, delta, size, factors);
}
SHOAL_VECTOR_CLONES void fast_adadelta(double* p, const double* g, double* square, double* delta,
                                       std::int64_t size, const AdadeltaFactors<double>& factors) {
  adadelta_range(p, g, square, delta, size, factors);
}
SHOAL_VECTOR_CLONES void fast_adamax(float* p, const float* g, float* average, float* largest,
                                     std::int64_t size, const AdamaxFactors<float>& factors) {
  adamax_range(p, g, average, largest, size, factors);
}
SHOAL_VECTOR_CLONES void fast_adamax(double* p, const double* g, double* average, double* largest,
                                     std::int64_t size, const AdamaxFactors<double>& factors) {
  adamax_range(p, g, average, largest, size, factors);
}
SHOAL_VECTOR_CLONES void fast_radam(float* p, const float* g, float* average, float* square,
                                    std::int64_t size, const RadamFactors<float>& factors) {
  radam_range(p, g, average, square, size, factors);
}
SHOAL_VECTOR_CLONES void fast_radam(double* p, const double* g, double* average, double* square,
                                    std::int64_t size, const RadamFactors<double>& factors) {
  radam_range(p, g, average, square, size, factors);
}
SHOAL_VECTOR_CLONES void fast_rprop(float* p, const float* g, float* previous, float* length,
                                    std::int64_t size, const RpropFactors<float>& factors) {
  rprop_range(p, g, previous, length, size, factors);
}
SHOAL_VECTOR_CLONES void fast_rprop(double* p, const double* g, double* previous, double* length,
                                    std::int64_t size, const RpropFactors<double>& factors) {
  rprop_range(p, g, previous, length, size, factors);
}
SHOAL_VECTOR_CLONES void fast_nadam(float* p, const float* g, float* average, float* square,
                                    std::int64_t size, const NadamFactors<float>& factors) {
  nadam_range(p, g, average, square, size, factors);
}
SHOAL_VECTOR_CLONES void fast_nadam(double* p, const double* g, double* average, double* square,
                                    std::int64_t size, const NadamFactors<double>& factors) {
  nadam_range(p, g, average, square, size, factors);
}
SHOAL_VECTOR_CLONES void fast_asgd(float* p, const float* g, float* average, std::int64_t size,
                                   const AsgdFactors<float>& factors) {
  asgd_range(p, g, average, size, factors);
}
SHOAL_VECTOR_CLONES void fast_asgd(double* p, const double* g, double* average, std::int64_t size,
                                   const AsgdFactors<double>& factors) {
  asgd_range(p, g, average, size, factors);
}

}  // namespace shoal::runtime
