// SPDX-License-Identifier: Apache-2.0
// What an update does to a row of elements. Templates for every type; float and double are also compiled by
// themselves, with the compiler free to use vectors.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace shoal::runtime {

// Half-precision elements are updated in float.
template <class T>
using Math = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class Real>
struct SgdFactors {
  Real lr, scale, momentum, weight_decay;
};

template <class Real>
struct AdamFactors {
  Real scale, decay_added, decay_kept;
  Real beta1, one_minus_beta1, beta2, one_minus_beta2;
  Real inverse_root_of_correction2, eps, step_length;
};

template <bool kMomentum, bool kNesterov, class T>
[[gnu::always_inline]] inline void sgd_loop(T* __restrict parameter, const T* __restrict gradient,
                                            T* __restrict buffer, std::int64_t size,
                                            SgdFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    const Real p = static_cast<Real>(parameter[i]);
    Real g = static_cast<Real>(gradient[i]) * factors.scale + factors.weight_decay * p;
    if constexpr (kMomentum) {
      const Real b = static_cast<Real>(buffer[i]) * factors.momentum + g;
      buffer[i] = static_cast<T>(b);
      g = kNesterov ? g + factors.momentum * b : b;
    }
    parameter[i] = static_cast<T>(p - factors.lr * g);
  }
}

// A null buffer: no momentum.
template <class T>
[[gnu::always_inline]] inline void sgd_range(T* p, const T* g, T* buffer, std::int64_t size,
                                             const SgdFactors<Math<T>>& factors, bool nesterov) {
  if (buffer == nullptr)
    sgd_loop<false, false>(p, g, buffer, size, factors);
  else if (nesterov)
    sgd_loop<true, true>(p, g, buffer, size, factors);
  else
    sgd_loop<true, false>(p, g, buffer, size, factors);
}

template <class T>
[[gnu::always_inline]] inline void adam_range(T* __restrict parameter, const T* __restrict gradient,
                                              T* __restrict average, T* __restrict square, std::int64_t size,
                                              AdamFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    Real p = static_cast<Real>(parameter[i]);
    const Real g = static_cast<Real>(gradient[i]) * factors.scale + factors.decay_added * p;
    p *= factors.decay_kept;
    const Real m = static_cast<Real>(average[i]) * factors.beta1 + g * factors.one_minus_beta1;
    const Real v = static_cast<Real>(square[i]) * factors.beta2 + g * g * factors.one_minus_beta2;
    average[i] = static_cast<T>(m);
    square[i] = static_cast<T>(v);
    const Real denominator = std::sqrt(v) * factors.inverse_root_of_correction2 + factors.eps;
    parameter[i] = static_cast<T>(p - factors.step_length * (m / denominator));
  }
}

// Squares are summed in double and in sixteen sums side by side, so that millions of floats lose nothing.
template <class T>
[[gnu::always_inline]] inline double sum_of_squares(const T* values, std::int64_t size) {
  constexpr std::int64_t kSums = 16;
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= size; i += kSums)
    for (std::int64_t lane = 0; lane < kSums; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      sums[lane] += value * value;
    }
  for (std::int64_t lane = 0; i < size; ++i, ++lane)
    sums[lane] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

void fast_sgd(float* p, const float* g, float* buffer, std::int64_t size, const SgdFactors<float>& factors,
              bool nesterov);
void fast_sgd(double* p, const double* g, double* buffer, std::int64_t size,
              const SgdFactors<double>& factors, bool nesterov);
void fast_adam(float* p, const float* g, float* m, float* v, std::int64_t size,
               const AdamFactors<float>& factors);
void fast_adam(double* p, const double* g, double* m, double* v, std::int64_t size,
               const AdamFactors<double>& factors);
double fast_squares(const float* values, std::int64_t size);
double fast_squares(const double* values, std::int64_t size);

template <class T>
void fast_sgd(T* p, const T* g, T* buffer, std::int64_t size, const SgdFactors<float>& factors,
              bool nesterov) {
  sgd_range(p, g, buffer, size, factors, nesterov);
}
template <class T>
void fast_adam(T* p, const T* g, T* m, T* v, std::int64_t size, const AdamFactors<float>& factors) {
  adam_range(p, g, m, v, size, factors);
}
template <class T>
double fast_squares(const T* values, std::int64_t size) {
  return sum_of_squares(values, size);
}

}  // namespace shoal::runtime
