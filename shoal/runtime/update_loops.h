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
  Real added;  // of the gradient, to the buffer
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
      const Real b = static_cast<Real>(buffer[i]) * factors.momentum + g * factors.added;
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

template <bool kAmsgrad, class T>
[[gnu::always_inline]] inline void adam_loop(T* __restrict parameter, const T* __restrict gradient,
                                             T* __restrict average, T* __restrict square,
                                             T* __restrict largest, std::int64_t size,
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
    Real divided_by = v;
    if constexpr (kAmsgrad) {
      const Real before = static_cast<Real>(largest[i]);
      divided_by = before > v ? before : v;
      largest[i] = static_cast<T>(divided_by);
    }
    const Real denominator = std::sqrt(divided_by) * factors.inverse_root_of_correction2 + factors.eps;
    parameter[i] = static_cast<T>(p - factors.step_length * (m / denominator));
  }
}

// A null `largest`: not AMSGrad.
template <class T>
[[gnu::always_inline]] inline void adam_range(T* p, const T* g, T* m, T* v, T* largest, std::int64_t size,
                                              const AdamFactors<Math<T>>& factors) {
  if (largest == nullptr)
    adam_loop<false>(p, g, m, v, largest, size, factors);
  else
    adam_loop<true>(p, g, m, v, largest, size, factors);
}

template <class Real>
struct AdagradFactors {
  Real lr, scale, eps, weight_decay;
};

template <class T>
[[gnu::always_inline]] inline void adagrad_range(T* __restrict parameter, const T* __restrict gradient,
                                                 T* __restrict sum, std::int64_t size,
                                                 AdagradFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    const Real p = static_cast<Real>(parameter[i]);
    const Real g = static_cast<Real>(gradient[i]) * factors.scale + factors.weight_decay * p;
    const Real s = static_cast<Real>(sum[i]) + g * g;
    sum[i] = static_cast<T>(s);
    parameter[i] = static_cast<T>(p - factors.lr * (g / (std::sqrt(s) + factors.eps)));
  }
}

template <class Real>
struct RmspropFactors {
  Real lr, scale, alpha, one_minus_alpha, eps, momentum, weight_decay;
};

template <bool kMomentum, bool kCentered, class T>
[[gnu::always_inline]] inline void rmsprop_loop(T* __restrict parameter, const T* __restrict gradient,
                                                T* __restrict square, T* __restrict buffer,
                                                T* __restrict average, std::int64_t size,
                                                RmspropFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    const Real p = static_cast<Real>(parameter[i]);
    const Real g = static_cast<Real>(gradient[i]) * factors.scale + factors.weight_decay * p;
    Real v = static_cast<Real>(square[i]) * factors.alpha + g * g * factors.one_minus_alpha;
    square[i] = static_cast<T>(v);
    if constexpr (kCentered) {
      const Real mean = static_cast<Real>(average[i]) * factors.alpha + g * factors.one_minus_alpha;
      average[i] = static_cast<T>(mean);
      v -= mean * mean;
    }
    Real step = g / (std::sqrt(v) + factors.eps);
    if constexpr (kMomentum) {
      step += static_cast<Real>(buffer[i]) * factors.momentum;
      buffer[i] = static_cast<T>(step);
    }
    parameter[i] = static_cast<T>(p - factors.lr * step);
  }
}

// A null buffer: no momentum; a null average: not centered.
template <class T>
[[gnu::always_inline]] inline void rmsprop_range(T* p, const T* g, T* square, T* buffer, T* average,
                                                 std::int64_t size, const RmspropFactors<Math<T>>& factors) {
  if (buffer != nullptr && average != nullptr)
    rmsprop_loop<true, true>(p, g, square, buffer, average, size, factors);
  else if (buffer != nullptr)
    rmsprop_loop<true, false>(p, g, square, buffer, average, size, factors);
  else if (average != nullptr)
    rmsprop_loop<false, true>(p, g, square, buffer, average, size, factors);
  else
    rmsprop_loop<false, false>(p, g, square, buffer, average, size, factors);
}

template <class Real>
struct LionFactors {
  Real lr, scale, decay_kept, beta1, one_minus_beta1, beta2, one_minus_beta2;
};

template <class T>
[[gnu::always_inline]] inline void lion_range(T* __restrict parameter, const T* __restrict gradient,
                                              T* __restrict average, std::int64_t size,
                                              LionFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    const Real g = static_cast<Real>(gradient[i]) * factors.scale;
    const Real m = static_cast<Real>(average[i]);
    const Real direction = m * factors.beta1 + g * factors.one_minus_beta1;
    const Real sign = static_cast<Real>(direction > 0) - static_cast<Real>(direction < 0);
    average[i] = static_cast<T>(m * factors.beta2 + g * factors.one_minus_beta2);
    parameter[i] = static_cast<T>(static_cast<Real>(parameter[i]) * factors.decay_kept - factors.lr * sign);
  }
}

template <class Real>
struct LambFactors {
  Real scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  Real inverse_correction1, inverse_root_of_correction2, eps, weight_decay;
};

template <class Real>
[[gnu::always_inline]] inline Real lamb_direction(Real p, Real m, Real v, const LambFactors<Real>& factors) {
  return m * factors.inverse_correction1 /
             (std::sqrt(v) * factors.inverse_root_of_correction2 + factors.eps) +
         factors.weight_decay * p;
}

// The moments of a piece, and what it adds to the squared norms of parameter and direction.
struct LambNorms {
  double parameter = 0;
  double direction = 0;
};
template <class T>
[[gnu::always_inline]] inline LambNorms lamb_moments(const T* __restrict parameter,
                                                     const T* __restrict gradient, T* __restrict average,
                                                     T* __restrict square, std::int64_t size,
                                                     LambFactors<Math<T>> factors) {
  using Real = Math<T>;
  LambNorms norms;
  for (std::int64_t i = 0; i < size; ++i) {
    const Real p = static_cast<Real>(parameter[i]);
    const Real g = static_cast<Real>(gradient[i]) * factors.scale;
    average[i] = static_cast<T>(static_cast<Real>(average[i]) * factors.beta1 + g * factors.one_minus_beta1);
    square[i] =
        static_cast<T>(static_cast<Real>(square[i]) * factors.beta2 + g * g * factors.one_minus_beta2);
    const Real u = lamb_direction(p, static_cast<Real>(average[i]), static_cast<Real>(square[i]), factors);
    norms.parameter += static_cast<double>(p) * static_cast<double>(p);
    norms.direction += static_cast<double>(u) * static_cast<double>(u);
  }
  return norms;
}

// `length`: learning rate times the ratio of the two norms.
template <class T>
[[gnu::always_inline]] inline void lamb_step(T* __restrict parameter, const T* __restrict average,
                                             const T* __restrict square, std::int64_t size, Math<T> length,
                                             LambFactors<Math<T>> factors) {
  using Real = Math<T>;
  for (std::int64_t i = 0; i < size; ++i) {
    const Real p = static_cast<Real>(parameter[i]);
    parameter[i] = static_cast<T>(
        p - length * lamb_direction(p, static_cast<Real>(average[i]), static_cast<Real>(square[i]), factors));
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
void fast_adam(float* p, const float* g, float* m, float* v, float* largest, std::int64_t size,
               const AdamFactors<float>& factors);
void fast_adam(double* p, const double* g, double* m, double* v, double* largest, std::int64_t size,
               const AdamFactors<double>& factors);
void fast_adagrad(float* p, const float* g, float* sum, std::int64_t size,
                  const AdagradFactors<float>& factors);
void fast_adagrad(double* p, const double* g, double* sum, std::int64_t size,
                  const AdagradFactors<double>& factors);
void fast_rmsprop(float* p, const float* g, float* square, float* buffer, float* average, std::int64_t size,
                  const RmspropFactors<float>& factors);
void fast_rmsprop(double* p, const double* g, double* square, double* buffer, double* average,
                  std::int64_t size, const RmspropFactors<double>& factors);
void fast_lion(float* p, const float* g, float* m, std::int64_t size, const LionFactors<float>& factors);
void fast_lion(double* p, const double* g, double* m, std::int64_t size, const LionFactors<double>& factors);
double fast_squares(const float* values, std::int64_t size);
double fast_squares(const double* values, std::int64_t size);

template <class T>
void fast_sgd(T* p, const T* g, T* buffer, std::int64_t size, const SgdFactors<float>& factors,
              bool nesterov) {
  sgd_range(p, g, buffer, size, factors, nesterov);
}
template <class T>
void fast_adam(T* p, const T* g, T* m, T* v, T* largest, std::int64_t size,
               const AdamFactors<float>& factors) {
  adam_range(p, g, m, v, largest, size, factors);
}
template <class T>
void fast_adagrad(T* p, const T* g, T* sum, std::int64_t size, const AdagradFactors<float>& factors) {
  adagrad_range(p, g, sum, size, factors);
}
template <class T>
void fast_rmsprop(T* p, const T* g, T* square, T* buffer, T* average, std::int64_t size,
                  const RmspropFactors<float>& factors) {
  rmsprop_range(p, g, square, buffer, average, size, factors);
}
template <class T>
void fast_lion(T* p, const T* g, T* m, std::int64_t size, const LionFactors<float>& factors) {
  lion_range(p, g, m, size, factors);
}
template <class T>
double fast_squares(const T* values, std::int64_t size) {
  return sum_of_squares(values, size);
}

}  // namespace shoal::runtime
