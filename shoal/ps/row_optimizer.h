// SPDX-License-Identifier: Apache-2.0
// How a gradient changes a row: functions over its values and its state, in float, and for tables of float64
// in double. A row knows nothing of other rows, so what counts steps (Adam) counts those of this row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace shoal::ps {

enum class RowRule : std::uint8_t {
  Sgd,         // w −= rate·g
  Momentum,    // m = beta1·m + g; w −= rate·m
  Adagrad,     // s += g²; w −= rate·g/(√s + epsilon)
  RowAdagrad,  // the same with one s for the row: the mean of its g²
  Adam,        // as in torch.optim.Adam, with the row's own step
  RowAdam,     // the same with one second moment for the row: of the mean of its g²
  RmsProp,     // s = beta2·s + (1 − beta2)·g²; w −= rate·g/(√s + epsilon)
  Ftrl,        // McMahan et al., KDD'13: per coordinate, l1 makes zeros
};

std::string_view name_of(RowRule rule);                    // "sgd", "row_adagrad", …
std::optional<RowRule> parse_rule(std::string_view name);  // the inverse; none: there is no such

// A rule and its numbers; one that the rule does not name is left alone.
struct RowOptimizer {
  RowRule rule = RowRule::Adagrad;  // what a gradient does
  double rate = 0.01;               // the learning rate
  double beta1 = 0.9;               // momentum, adam
  double beta2 = 0.999;             // adam, rms_prop
  double epsilon = 1e-10;           // ftrl: the paper's beta
  double start = 0;                 // what the sums of squares of adagrad and ftrl begin with
  double l1 = 0, l2 = 0;            // l1: ftrl; l2: the others too, added to the gradient
  friend bool operator==(const RowOptimizer&, const RowOptimizer&) = default;
};

// Numbers of state that a row of this many values has.
std::size_t state_width(const RowOptimizer& optimizer, std::size_t values);
// Writes the state, of state_width() numbers, of a row that no gradient has come to.
void begin_state(const RowOptimizer& optimizer, std::size_t values, std::span<float> state);
void begin_state(const RowOptimizer& optimizer, std::size_t values, std::span<double> state);

// All of a row: state.size() is state_width(), gradient.size() that of the values. `scale` multiplies the
// rate.
void update(const RowOptimizer& optimizer, double scale, std::span<float> values, std::span<float> state,
            std::span<const float> gradient);
void update(const RowOptimizer& optimizer, double scale, std::span<double> values, std::span<double> state,
            std::span<const double> gradient);

// Values below `lowest` become it, those above `highest` that.
void bound(std::span<float> values, float lowest, float highest);
void bound(std::span<double> values, float lowest, float highest);
// Whether none is infinite or NaN.
bool all_finite(std::span<const float> numbers);
bool all_finite(std::span<const double> numbers);

// A row stored as bfloat16, in floats and back. Nearest rounding would lose every change below 1/256 of a
// value for good; here a value is rounded up as often as it lies above, drawn from its own bits and `salt`.
void widen(std::span<const std::uint16_t> from, std::span<float> to);
void narrow(std::span<const float> from, std::span<std::uint16_t> to, std::uint64_t salt);
// To the nearest, of two as near the even one: on the way, where nothing adds up.
void narrow_to_nearest(std::span<const float> from, std::span<std::uint16_t> to);

}  // namespace shoal::ps
