// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3, which makes vectors of the loops; no sum is reordered and nothing fused, so every
// processor gives the same bits.
#include "shoal/ps/row_optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "shoal/base/names.h"
#include "shoal/ps/hash.h"

namespace shoal::ps {

static constexpr Names<RowRule, 8> kRules = {{
    {RowRule::Sgd, "sgd"},
    {RowRule::Momentum, "momentum"},
    {RowRule::Adagrad, "adagrad"},
    {RowRule::RowAdagrad, "row_adagrad"},
    {RowRule::Adam, "adam"},
    {RowRule::RowAdam, "row_adam"},
    {RowRule::RmsProp, "rms_prop"},
    {RowRule::Ftrl, "ftrl"},
}};

std::string_view name_of(RowRule rule) { return name_in(kRules, rule); }
std::optional<RowRule> parse_rule(std::string_view name) { return parse_in(kRules, name); }

std::size_t state_width(const RowOptimizer& optimizer, std::size_t values) {
  switch (optimizer.rule) {
    case RowRule::Sgd: return 0;
    case RowRule::Momentum:
    case RowRule::Adagrad:
    case RowRule::RmsProp: return values;
    case RowRule::RowAdagrad: return 1;
    case RowRule::Adam: return 2 * values + 2;  // both moments, the powers of both betas
    case RowRule::RowAdam: return values + 3;
    case RowRule::Ftrl: return 2 * values;  // sums of squares, z
  }
  return 0;
}

namespace {

// A rule's settings in the numbers of the rows.
template <class T>
struct Rates {
  Rates(const RowOptimizer& optimizer, double scale)
      : rate(static_cast<T>(optimizer.rate * scale)),
        beta1(static_cast<T>(optimizer.beta1)),
        beta2(static_cast<T>(optimizer.beta2)),
        epsilon(static_cast<T>(optimizer.epsilon)),
        l1(static_cast<T>(optimizer.l1)),
        l2(static_cast<T>(optimizer.l2)) {}
  T rate, beta1, beta2, epsilon, l1, l2;
};

}  // namespace

template <class T>
static void begin(const RowOptimizer& optimizer, std::size_t values, std::span<T> state) {
  std::ranges::fill(state, T{0});
  const T start = static_cast<T>(optimizer.start);
  switch (optimizer.rule) {
    case RowRule::Adagrad:
    case RowRule::RowAdagrad: std::ranges::fill(state, start); break;
    case RowRule::Ftrl: std::ranges::fill(state.first(values), start); break;
    case RowRule::Adam:
    case RowRule::RowAdam: std::ranges::fill(state.last(2), T{1}); break;
    default: break;
  }
}

template <class T>
static T mean_square(const T* g, std::size_t count) {
  T sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += g[i] * g[i];
  return sum / static_cast<T>(count);
}

template <class T>
static void adagrad(const Rates<T>& o, T* __restrict w, T* __restrict s, const T* __restrict gradient,
                    std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const T g = gradient[i] + o.l2 * w[i];
    s[i] += g * g;
    w[i] -= o.rate * g / (std::sqrt(s[i]) + o.epsilon);
  }
}

template <class T>
static void row_adagrad(const Rates<T>& o, T* __restrict w, T* __restrict s, const T* __restrict gradient,
                        std::size_t count) {
  s[0] += mean_square(gradient, count);
  const T step = o.rate / (std::sqrt(s[0]) + o.epsilon);
  for (std::size_t i = 0; i < count; ++i) w[i] -= step * (gradient[i] + o.l2 * w[i]);
}

template <class T>
static void adam(const Rates<T>& o, T* __restrict w, T* __restrict state, const T* __restrict gradient,
                 std::size_t count) {
  T* const m = state;
  T* const v = state + count;
  T* const powers = v + count;
  powers[0] *= o.beta1;
  powers[1] *= o.beta2;
  const T step = o.rate / (1 - powers[0]);
  const T root = std::sqrt(1 - powers[1]);
  for (std::size_t i = 0; i < count; ++i) {
    const T g = gradient[i] + o.l2 * w[i];
    m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
    v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
    w[i] -= step * m[i] / (std::sqrt(v[i]) / root + o.epsilon);
  }
}

template <class T>
static void row_adam(const Rates<T>& o, T* __restrict w, T* __restrict state, const T* __restrict gradient,
                     std::size_t count) {
  T* const m = state;
  T* const powers = state + count + 1;
  powers[0] *= o.beta1;
  powers[1] *= o.beta2;
  state[count] = o.beta2 * state[count] + (1 - o.beta2) * mean_square(gradient, count);
  const T step = o.rate / (1 - powers[0]) / (std::sqrt(state[count]) / std::sqrt(1 - powers[1]) + o.epsilon);
  for (std::size_t i = 0; i < count; ++i) {
    m[i] = o.beta1 * m[i] + (1 - o.beta1) * (gradient[i] + o.l2 * w[i]);
    w[i] -= step * m[i];
  }
}

template <class T>
static void rms_prop(const Rates<T>& o, T* __restrict w, T* __restrict s, const T* __restrict gradient,
                     std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const T g = gradient[i] + o.l2 * w[i];
    s[i] = o.beta2 * s[i] + (1 - o.beta2) * g * g;
    w[i] -= o.rate * g / (std::sqrt(s[i]) + o.epsilon);
  }
}

template <class T>
static void ftrl(const Rates<T>& o, T* __restrict w, T* __restrict state, const T* __restrict g,
                 std::size_t count) {
  T* const n = state;
  T* const z = state + count;
  for (std::size_t i = 0; i < count; ++i) {
    const T before = std::sqrt(n[i]);
    n[i] += g[i] * g[i];
    const T root = std::sqrt(n[i]);
    z[i] += g[i] - (root - before) / o.rate * w[i];
    const T excess = std::abs(z[i]) - o.l1;
    w[i] = excess <= 0 ? T{0} : -std::copysign(excess, z[i]) / ((o.epsilon + root) / o.rate + o.l2);
  }
}

template <class T>
static void update_row(const RowOptimizer& optimizer, double scale, std::span<T> values, std::span<T> state,
                       std::span<const T> gradient) {
  T* const w = values.data();
  T* const s = state.data();
  const T* const g = gradient.data();
  const std::size_t count = values.size();
  const Rates<T> o(optimizer, scale);
  switch (optimizer.rule) {
    case RowRule::Sgd:
      for (std::size_t i = 0; i < count; ++i) w[i] -= o.rate * (g[i] + o.l2 * w[i]);
      break;
    case RowRule::Momentum:
      for (std::size_t i = 0; i < count; ++i) {
        s[i] = o.beta1 * s[i] + (g[i] + o.l2 * w[i]);
        w[i] -= o.rate * s[i];
      }
      break;
    case RowRule::Adagrad: adagrad(o, w, s, g, count); break;
    case RowRule::RowAdagrad: row_adagrad(o, w, s, g, count); break;
    case RowRule::Adam: adam(o, w, s, g, count); break;
    case RowRule::RowAdam: row_adam(o, w, s, g, count); break;
    case RowRule::RmsProp: rms_prop(o, w, s, g, count); break;
    case RowRule::Ftrl: ftrl(o, w, s, g, count); break;
  }
}

template <class T>
static void keep_within(std::span<T> values, float lowest, float highest) {
  for (T& value : values) value = std::min(std::max(value, T{lowest}), T{highest});
}

// By the exponent's bits, all of which are set in what is not finite.
template <class Bits, class T>
static bool are_finite(std::span<const T> numbers, Bits exponent) {
  Bits wrong = 0;
  for (const T number : numbers)
    wrong |= (std::bit_cast<Bits>(number) & exponent) == exponent ? Bits{1} : Bits{0};
  return wrong == 0;
}

void begin_state(const RowOptimizer& optimizer, std::size_t values, std::span<float> state) {
  begin(optimizer, values, state);
}
void begin_state(const RowOptimizer& optimizer, std::size_t values, std::span<double> state) {
  begin(optimizer, values, state);
}

void update(const RowOptimizer& optimizer, double scale, std::span<float> values, std::span<float> state,
            std::span<const float> gradient) {
  update_row(optimizer, scale, values, state, gradient);
}
void update(const RowOptimizer& optimizer, double scale, std::span<double> values, std::span<double> state,
            std::span<const double> gradient) {
  update_row(optimizer, scale, values, state, gradient);
}

void bound(std::span<float> values, float lowest, float highest) { keep_within(values, lowest, highest); }
void bound(std::span<double> values, float lowest, float highest) { keep_within(values, lowest, highest); }

bool all_finite(std::span<const float> numbers) { return are_finite<std::uint32_t>(numbers, 0x7f800000u); }
bool all_finite(std::span<const double> numbers) {
  return are_finite<std::uint64_t>(numbers, 0x7ff0000000000000ull);
}

void widen(std::span<const std::uint16_t> from, std::span<float> to) {
  for (std::size_t i = 0; i < from.size(); ++i)
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
}

void narrow(std::span<const float> from, std::span<std::uint16_t> to, std::uint64_t salt) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint64_t draw = mixed(salt ^ (std::uint64_t{bits} << 32) ^ i);
    to[i] = static_cast<std::uint16_t>((bits + static_cast<std::uint32_t>(draw & 0xffff)) >> 16);
  }
}

void narrow_to_nearest(std::span<const float> from, std::span<std::uint16_t> to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    to[i] = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}

}  // namespace shoal::ps
