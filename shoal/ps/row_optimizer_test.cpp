// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/row_optimizer.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <vector>

using namespace shoal::ps;

using Three = std::array<float, 3>;

// A row after these gradients, one after the other.
static Three trained(const RowOptimizer& optimizer, std::vector<Three> gradients) {
  Three values = {0.5f, -0.25f, 0.125f};
  std::vector<float> state(state_width(optimizer, 3));
  begin_state(optimizer, 3, state);
  for (const Three& gradient : gradients) update(optimizer, 1, values, state, gradient);
  return values;
}

static const std::vector<Three> kGradients = {
    {0.5f, -1.0f, 0.25f}, {0.1f, 0.2f, -0.3f}, {-0.7f, 0.05f, 0.0f}};

static bool near(const Three& got, const std::array<double, 3>& wanted) {
  for (std::size_t i = 0; i < 3; ++i)
    if (!(std::abs(got[i] - wanted[i]) < 1e-6)) return false;
  return true;
}

// Wanted: torch.optim 2.13 in float64.
TEST_CASE("three updates of a row are those of torch.optim") {
  CHECK(near(trained({.rule = RowRule::Sgd, .rate = 0.1, .l2 = 0.01}, kGradients),
             {0.508611450, -0.174430650, 0.129645350}));
  CHECK(near(trained({.rule = RowRule::Momentum, .rate = 0.1}, kGradients), {0.4155, -0.022, 0.11425}));
  CHECK(near(trained({.rule = RowRule::Adagrad, .rate = 0.1, .start = 0.1}, kGradients),
             {0.474743568, -0.178063260, 0.122684864}));
  CHECK(near(trained({.rule = RowRule::Adam, .rate = 0.1, .epsilon = 1e-8}, kGradients),
             {0.334822635, -0.062573765, 0.050344145}));
  CHECK(near(trained({.rule = RowRule::RmsProp, .rate = 0.1, .beta2 = 0.99, .epsilon = 1e-8}, kGradients),
             {0.113973339, 0.503479996, -0.105199439}));
}

TEST_CASE("what a row shares is the mean over its values: equal gradients make it the rule by element") {
  const std::vector<Three> equal = {{0.5f, 0.5f, 0.5f}, {-0.25f, -0.25f, -0.25f}, {2, 2, 2}};
  const auto same = [](const Three& a, const Three& b) { return near(a, {b[0], b[1], b[2]}); };
  CHECK(same(trained({.rule = RowRule::RowAdagrad}, equal), trained({.rule = RowRule::Adagrad}, equal)));
  CHECK(same(trained({.rule = RowRule::RowAdam}, equal), trained({.rule = RowRule::Adam}, equal)));
  CHECK_FALSE(same(trained({.rule = RowRule::RowAdagrad}, kGradients),
                   trained({.rule = RowRule::Adagrad}, kGradients)));
}

// McMahan et al., algorithm 1, in double.
static std::array<double, 3> ftrl_reference(double alpha, double beta, double l1, double l2) {
  std::array<double, 3> w = {0.5, -0.25, 0.125}, n = {}, z = {};
  for (const Three& g : kGradients)
    for (std::size_t i = 0; i < 3; ++i) {
      const double sigma = (std::sqrt(n[i] + g[i] * g[i]) - std::sqrt(n[i])) / alpha;
      z[i] += g[i] - sigma * w[i];
      n[i] += g[i] * g[i];
      const double sign = z[i] < 0 ? -1 : 1;
      w[i] = std::abs(z[i]) <= l1 ? 0 : -(z[i] - sign * l1) / ((beta + std::sqrt(n[i])) / alpha + l2);
    }
  return w;
}

TEST_CASE("ftrl is the paper's, and l1 makes zeros") {
  const RowOptimizer weak = {.rule = RowRule::Ftrl, .rate = 0.1, .epsilon = 1, .l1 = 0.01, .l2 = 0.1};
  CHECK(near(trained(weak, kGradients), ftrl_reference(0.1, 1, 0.01, 0.1)));
  RowOptimizer strong = weak;
  strong.l1 = 10;
  CHECK(trained(strong, kGradients) == Three{0, 0, 0});
}

TEST_CASE("values are kept within bounds") {
  Three values = {-2, 0.5f, 2};
  bound(values, -1, 1);
  CHECK(values == Three{-1, 0.5f, 1});
}

TEST_CASE("not a number and infinity are found anywhere in a row") {
  std::vector<float> numbers(37, 1.0f);
  CHECK(all_finite(numbers));
  for (const float wrong : {NAN, -INFINITY}) {
    for (std::size_t at = 0; at < numbers.size(); ++at) {
      numbers[at] = wrong;
      CHECK_FALSE(all_finite(numbers));
      numbers[at] = 1;
    }
  }
}

TEST_CASE("bfloat16 values take changes too small for them as often as they are large") {
  std::array<std::uint16_t, 1> stored;
  narrow(std::array{1.0f}, stored, 0);
  std::array<float, 1> value;
  for (std::uint64_t step = 0; step < 10'000; ++step) {
    widen(stored, value);
    value[0] += 1e-4f;  // an eightieth of the distance between two of them
    narrow(value, stored, step);
  }
  widen(stored, value);
  CHECK(value[0] == doctest::Approx(2.0).epsilon(0.1));
}

TEST_CASE("names of rules are read back") {
  for (const auto rule : {RowRule::Sgd, RowRule::Momentum, RowRule::Adagrad, RowRule::RowAdagrad,
                          RowRule::Adam, RowRule::RowAdam, RowRule::RmsProp, RowRule::Ftrl})
    CHECK(parse_rule(name_of(rule)) == rule);
  CHECK_FALSE(parse_rule("adamw"));
}
