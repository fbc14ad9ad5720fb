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

void begin_state(const RowOptimizer& optimizer, std::size_t values, std::span<float> state) {
  std::ranges::fill(state, 0.0f);
  switch (optimizer.rule) {
    case RowRule::Adagrad:
    case RowRule::RowAdagrad: std::ranges::fill(state, optimizer.start); break;
    case RowRule::Ftrl: std::ranges::fill(state.first(values), optimizer.start); break;
    case RowRule::Adam:
    case RowRule::RowAdam: std::ranges::fill(state.last(2), 1.0f); break;
    default: break;
  }
}

static float mean_square(const float* g, std::size_t count) {
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += g[i] * g[i];
  return sum / static_cast<float>(count);
}

static void adagrad(const RowOptimizer& o, float rate, float* __restrict w, float* __restrict s,
                    const float* __restrict gradient, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient[i] + o.l2 * w[i];
    s[i] += g * g;
    w[i] -= rate * g / (std::sqrt(s[i]) + o.epsilon);
  }
}

static void row_adagrad(const RowOptimizer& o, float rate, float* __restrict w, float* __restrict s,
                        const float* __restrict gradient, std::size_t count) {
  s[0] += mean_square(gradient, count);
  const float step = rate / (std::sqrt(s[0]) + o.epsilon);
  for (std::size_t i = 0; i < count; ++i) w[i] -= step * (gradient[i] + o.l2 * w[i]);
}

static void adam(const RowOptimizer& o, float rate, float* __restrict w, float* __restrict state,
                 const float* __restrict gradient, std::size_t count) {
  float* const m = state;
  float* const v = state + count;
  float* const powers = v + count;
  powers[0] *= o.beta1;
  powers[1] *= o.beta2;
  const float step = rate / (1 - powers[0]);
  const float root = std::sqrt(1 - powers[1]);
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient[i] + o.l2 * w[i];
    m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
    v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
    w[i] -= step * m[i] / (std::sqrt(v[i]) / root + o.epsilon);
  }
}

static void row_adam(const RowOptimizer& o, float rate, float* __restrict w, float* __restrict state,
                     const float* __restrict gradient, std::size_t count) {
  float* const m = state;
  float* const powers = state + count + 1;
  powers[0] *= o.beta1;
  powers[1] *= o.beta2;
  state[count] = o.beta2 * state[count] + (1 - o.beta2) * mean_square(gradient, count);
  const float step =
      rate / (1 - powers[0]) / (std::sqrt(state[count]) / std::sqrt(1 - powers[1]) + o.epsilon);
  for (std::size_t i = 0; i < count; ++i) {
    m[i] = o.beta1 * m[i] + (1 - o.beta1) * (gradient[i] + o.l2 * w[i]);
    w[i] -= step * m[i];
  }
}

static void rms_prop(const RowOptimizer& o, float rate, float* __restrict w, float* __restrict s,
                     const float* __restrict gradient, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient[i] + o.l2 * w[i];
    s[i] = o.beta2 * s[i] + (1 - o.beta2) * g * g;
    w[i] -= rate * g / (std::sqrt(s[i]) + o.epsilon);
  }
}

static void ftrl(const RowOptimizer& o, float rate, float* __restrict w, float* __restrict state,
                 const float* __restrict g, std::size_t count) {
  float* const n = state;
  float* const z = state + count;
  for (std::size_t i = 0; i < count; ++i) {
    const float before = std::sqrt(n[i]);
    n[i] += g[i] * g[i];
    const float root = std::sqrt(n[i]);
    z[i] += g[i] - (root - before) / rate * w[i];
    const float excess = std::abs(z[i]) - o.l1;
    w[i] = excess <= 0 ? 0.0f : -std::copysign(excess, z[i]) / ((o.epsilon + root) / rate + o.l2);
  }
}

void update(const RowOptimizer& o, float scale, std::span<float> values, std::span<float> state,
            std::span<const float> gradient) {
  float* const w = values.data();
  float* const s = state.data();
  const float* const g = gradient.data();
  const std::size_t count = values.size();
  const float rate = o.rate * scale;
  switch (o.rule) {
    case RowRule::Sgd:
      for (std::size_t i = 0; i < count; ++i) w[i] -= rate * (g[i] + o.l2 * w[i]);
      break;
    case RowRule::Momentum:
      for (std::size_t i = 0; i < count; ++i) {
        s[i] = o.beta1 * s[i] + (g[i] + o.l2 * w[i]);
        w[i] -= rate * s[i];
      }
      break;
    case RowRule::Adagrad: adagrad(o, rate, w, s, g, count); break;
    case RowRule::RowAdagrad: row_adagrad(o, rate, w, s, g, count); break;
    case RowRule::Adam: adam(o, rate, w, s, g, count); break;
    case RowRule::RowAdam: row_adam(o, rate, w, s, g, count); break;
    case RowRule::RmsProp: rms_prop(o, rate, w, s, g, count); break;
    case RowRule::Ftrl: ftrl(o, rate, w, s, g, count); break;
  }
}

void bound(std::span<float> values, float lowest, float highest) {
  for (float& value : values) value = std::min(std::max(value, lowest), highest);
}

bool all_finite(std::span<const float> numbers) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  std::uint32_t wrong = 0;
  for (const float number : numbers)
    wrong |= (std::bit_cast<std::uint32_t>(number) & kExponent) == kExponent ? 1U : 0U;
  return wrong == 0;
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

}  // namespace shoal::ps
