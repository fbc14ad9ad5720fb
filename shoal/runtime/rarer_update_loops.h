// SPDX-License-Identifier: Apache-2.0
// What the less common of torch.optim's updates do to a row of elements, in its order of operations. As
// update_loops.h: templates for every type, float and double also compiled with vectors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "shoal/runtime/update_loops.h"

namespace shoal::runtime {

template <class Real>
struct AdadeltaFactors {
  Real lr, scale, rho, one_minus_rho, eps, weight_decay;
};

template <class T>
[[gnu::always_inline]] inline void adadelta_range(T* __restrict parameter, const T* __restrict gradient,
                                                  T* __restrict square, T* __restrict delta,
                                                  std::int64_t size, AdadeltaFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    const Real p = static_cast<Real>(parameter[i]);
    const Real g = static_cast<Real>(gradient[i]) * factors.scale + factors.weight_decay * p;
    const Real v = static_cast<Real>(square[i]) * factors.rho + g * g * factors.one_minus_rho;
    const Real before = static_cast<Real>(delta[i]);
    const Real step = std::sqrt(before + factors.eps) / std::sqrt(v + factors.eps) * g;
    square[i] = static_cast<T>(v);
    delta[i] = static_cast<T>(before * factors.rho + step * step * factors.one_minus_rho);
    parameter[i] = static_cast<T>(p - factors.lr * step);
  }
}

template <class Real>
struct AdamaxFactors {
  Real scale, beta1, one_minus_beta1, beta2, eps, weight_decay, step_length;
};

template <class T>
[[gnu::always_inline]] inline void adamax_range(T* __restrict parameter, const T* __restrict gradient,
                                                T* __restrict average, T* __restrict largest,
                                                std::int64_t size, AdamaxFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    const Real p = static_cast<Real>(parameter[i]);
    const Real g = static_cast<Real>(gradient[i]) * factors.scale + factors.weight_decay * p;
    const Real m = static_cast<Real>(average[i]) * factors.beta1 + g * factors.one_minus_beta1;
    const Real size_now = std::abs(g) + factors.eps;
    const Real faded = static_cast<Real>(largest[i]) * factors.beta2;
    const Real norm = size_now > faded ? size_now : faded;
    average[i] = static_cast<T>(m);
    largest[i] = static_cast<T>(norm);
    parameter[i] = static_cast<T>(p - factors.step_length * (m / norm));
  }
}

template <class Real>
struct RadamFactors {
  Real scale, decay_added, decay_kept, beta1, one_minus_beta1, beta2, one_minus_beta2;
  Real eps, step_length, rectification;  // 0: the variance is not tractable yet, and only the average counts
};

template <class T>
[[gnu::always_inline]] inline void radam_range(T* __restrict parameter, const T* __restrict gradient,
                                               T* __restrict average, T* __restrict square, std::int64_t size,
                                               RadamFactors<Math<T>> factors) {
  using Real = Math<T>;
  const bool is_rectified = factors.rectification != 0;
  for (std::int64_t i = 0; i < size; ++i) {
    Real p = static_cast<Real>(parameter[i]);
    const Real g = static_cast<Real>(gradient[i]) * factors.scale + factors.decay_added * p;
    p *= factors.decay_kept;
    const Real m = static_cast<Real>(average[i]) * factors.beta1 + g * factors.one_minus_beta1;
    const Real v = static_cast<Real>(square[i]) * factors.beta2 + g * g * factors.one_minus_beta2;
    average[i] = static_cast<T>(m);
    square[i] = static_cast<T>(v);
    const Real adapted = is_rectified ? factors.rectification / (std::sqrt(v) + factors.eps) : Real{1};
    parameter[i] = static_cast<T>(p - factors.step_length * m * adapted);
  }
}

template <class Real>
struct RpropFactors {
  Real scale, shrink, grow, smallest, largest;
  Real first_length;  // in the first update: the length of every step; 0 in those after
};

template <class T>
[[gnu::always_inline]] inline void rprop_range(T* __restrict parameter, const T* __restrict gradient,
                                               T* __restrict previous, T* __restrict length,
                                               std::int64_t size, RpropFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    Real g = static_cast<Real>(gradient[i]) * factors.scale;
    const Real agreement = g * static_cast<Real>(previous[i]);
    const Real factor = agreement > 0 ? factors.grow : agreement < 0 ? factors.shrink : Real{1};
    const Real before = factors.first_length > 0 ? factors.first_length : static_cast<Real>(length[i]);
    const Real grown = before * factor;
    const Real above = grown > factors.smallest ? grown : factors.smallest;
    const Real now = above < factors.largest ? above : factors.largest;
    g = agreement < 0 ? Real{0} : g;
    const Real sign = static_cast<Real>(g > 0) - static_cast<Real>(g < 0);
    previous[i] = static_cast<T>(g);
    length[i] = static_cast<T>(now);
    parameter[i] = static_cast<T>(static_cast<Real>(parameter[i]) - sign * now);
  }
}

template <class Real>
struct NadamFactors {
  Real scale, decay_added, decay_kept, beta1, one_minus_beta1, beta2, one_minus_beta2;
  Real inverse_correction2, eps, gradient_length, average_length;
};

template <class T>
[[gnu::always_inline]] inline void nadam_range(T* __restrict parameter, const T* __restrict gradient,
                                               T* __restrict average, T* __restrict square, std::int64_t size,
                                               NadamFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    Real p = static_cast<Real>(parameter[i]);
    const Real g = static_cast<Real>(gradient[i]) * factors.scale + factors.decay_added * p;
    p *= factors.decay_kept;
    const Real m = static_cast<Real>(average[i]) * factors.beta1 + g * factors.one_minus_beta1;
    const Real v = static_cast<Real>(square[i]) * factors.beta2 + g * g * factors.one_minus_beta2;
    average[i] = static_cast<T>(m);
    square[i] = static_cast<T>(v);
    const Real divisor = std::sqrt(v * factors.inverse_correction2) + factors.eps;
    parameter[i] =
        static_cast<T>(p - factors.gradient_length * g / divisor - factors.average_length * m / divisor);
  }
}

template <class Real>
struct AsgdFactors {
  Real scale, weight_decay, kept, eta, mu;
};

template <class T>
[[gnu::always_inline]] inline void asgd_range(T* __restrict parameter, const T* __restrict gradient,
                                              T* __restrict average, std::int64_t size,
                                              AsgdFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    const Real p = static_cast<Real>(parameter[i]);
    const Real g = static_cast<Real>(gradient[i]) * factors.scale + factors.weight_decay * p;
    const Real now = p * factors.kept - factors.eta * g;
    const Real before = static_cast<Real>(average[i]);
    parameter[i] = static_cast<T>(now);
    average[i] = static_cast<T>(factors.mu == 1 ? now : before + (now - before) * factors.mu);
  }
}

void fast_adadelta(float* p, const float* g, float* square, float* delta, std::int64_t size,
                   const AdadeltaFactors<float>& factors);
void fast_adadelta(double* p, const double* g, double* square, double* delta, std::int64_t size,
                   const AdadeltaFactors<double>& factors);
void fast_adamax(float* p, const float* g, float* average, float* largest, std::int64_t size,
                 const AdamaxFactors<float>& factors);
void fast_adamax(double* p, const double* g, double* average, double* largest, std::int64_t size,
                 const AdamaxFactors<double>& factors);
void fast_radam(float* p, const float* g, float* average, float* square, std::int64_t size,
                const RadamFactors<float>& factors);
void fast_radam(double* p, const double* g, double* average, double* square, std::int64_t size,
                const RadamFactors<double>& factors);
void fast_rprop(float* p, const float* g, float* previous, float* length, std::int64_t size,
                const RpropFactors<float>& factors);
void fast_rprop(double* p, const double* g, double* previous, double* length, std::int64_t size,
                const RpropFactors<double>& factors);

void fast_nadam(float* p, const float* g, float* average, float* square, std::int64_t size,
                const NadamFactors<float>& factors);
void fast_nadam(double* p, const double* g, double* average, double* square, std::int64_t size,
                const NadamFactors<double>& factors);
void fast_asgd(float* p, const float* g, float* average, std::int64_t size,
               const AsgdFactors<float>& factors);
void fast_asgd(double* p, const double* g, double* average, std::int64_t size,
               const AsgdFactors<double>& factors);

template <class T>
void fast_nadam(T* p, const T* g, T* average, T* square, std::int64_t size,
                const NadamFactors<float>& factors) {
  nadam_range(p, g, average, square, size, factors);
}
template <class T>
void fast_asgd(T* p, const T* g, T* average, std::int64_t size, const AsgdFactors<float>& factors) {
  asgd_range(p, g, average, size, factors);
}
template <class T>
void fast_adadelta(T* p, const T* g, T* square, T* delta, std::int64_t size,
                   const AdadeltaFactors<float>& factors) {
  adadelta_range(p, g, square, delta, size, factors);
}
template <class T>
void fast_adamax(T* p, const T* g, T* average, T* largest, std::int64_t size,
                 const AdamaxFactors<float>& factors) {
  adamax_range(p, g, average, largest, size, factors);
}
template <class T>
void fast_radam(T* p, const T* g, T* average, T* square, std::int64_t size,
                const RadamFactors<float>& factors) {
  radam_range(p, g, average, square, size, factors);
}
template <class T>
void fast_rprop(T* p, const T* g, T* previous, T* length, std::int64_t size,
                const RpropFactors<float>& factors) {
  rprop_range(p, g, previous, length, size, factors);
}

}  // namespace shoal::runtime
