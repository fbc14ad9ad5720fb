// SPDX-License-Identifier: Apache-2.0
#include "shoal/aten/random.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>

#include "shoal/aten/operators.h"
#include "shoal/aten/whole_draw.h"
#include "shoal/base/error.h"

using namespace shoal;
using namespace shoal::aten;

using Words = std::array<std::uint32_t, 4>;

static const RandomStream kStream{.seed = 0x1234567890ULL, .step = 7, .ordinal = 3};

// Random123 1.14, tests/kat_vectors, "philox4x32 10".
TEST_CASE("philox gives the known answers of Random123") {
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a tensor's numbers are philox of seed, step, ordinal and place") {
  const auto draws = randint(0, std::int64_t{1} << 32, {200}, at::kLong, kStream);
  for (const std::int64_t i : {0, 5, 16, 31, 32, 199}) {
    const auto counter = static_cast<std::uint32_t>(i / 32 * 16 + i % 16);
    const Words words = philox({counter, 0, 3, 7}, {0x34567890, 0x12});
    CHECK(draws[i].item<std::int64_t>() == words[i % 32 < 16 ? 0 : 2]);
  }
}

struct Maker {
  std::string name;
  std::function<at::Tensor(at::IntArrayRef, at::TensorOptions, const RandomStream&)> make;
};
static const std::vector<Maker>& makers() {
  static const std::vector<Maker> all = {
      {"bernoulli",
       [](auto shape, auto options, auto& stream) { return bernoulli(0.3, shape, options, stream); }},
      {"uniform",
       [](auto shape, auto options, auto& stream) { return uniform(-1, 2, shape, options, stream); }},
      {"normal", [](auto shape, auto options, auto& stream) { return normal(1, 2, shape, options, stream); }},
      {"randint",
       [](auto shape, auto options, auto& stream) { return randint(-5, 90, shape, options, stream); }},
      {"exponential",
       [](auto shape, auto options, auto& stream) { return exponential(2, shape, options, stream); }},
  };
  return all;
}

TEST_CASE("a part of a tensor has the numbers of its place in the whole") {
  for (const auto& [name, make] : makers())
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      CAPTURE(name);
      const auto whole = make({1000}, dtype, kStream);
      for (const std::int64_t start : {1, 31, 64, 500}) {
        auto stream = kStream;
        stream.start = start;
        CHECK(at::equal(make({300}, dtype, stream), whole.narrow(0, start, 300)));
      }
    }
}

TEST_CASE("random numbers do not depend on the number of threads") {
  const int threads = at::get_num_threads();
  for (const auto& [name, make] : makers()) {
    CAPTURE(name);
    at::set_num_threads(1);
    const auto alone = make({1 << 17}, at::kFloat, kStream);
    at::set_num_threads(3);
    CHECK(at::equal(make({1 << 17}, at::kFloat, kStream), alone));
  }
  at::set_num_threads(threads);
}

TEST_CASE("seed, step and ordinal each give other numbers") {
  const auto draw = [](const RandomStream& stream) { return uniform(0, 1, {64}, at::kFloat, stream); };
  const auto first = draw({.seed = 1, .step = 1, .ordinal = 1});
  CHECK(at::equal(first, draw({.seed = 1, .step = 1, .ordinal = 1})));
  CHECK_FALSE(at::equal(first, draw({.seed = 2, .step = 1, .ordinal = 1})));
  CHECK_FALSE(at::equal(first, draw({.seed = std::uint64_t{1} << 32 | 1, .step = 1, .ordinal = 1})));
  CHECK_FALSE(at::equal(first, draw({.seed = 1, .step = 2, .ordinal = 1})));
  CHECK_FALSE(at::equal(first, draw({.seed = 1, .step = std::uint64_t{1} << 32 | 1, .ordinal = 1})));
  CHECK_FALSE(at::equal(first, draw({.seed = 1, .step = 1, .ordinal = 2})));
}

// Mean and deviation within five standard errors of what they should be.
static void check_moments(const at::Tensor& sample, double mean, double deviation) {
  const auto values = sample.to(at::kDouble);
  const double root = std::sqrt(static_cast<double>(values.numel()));
  CHECK(std::abs(values.mean().item<double>() - mean) < 5 * deviation / root);
  CHECK(std::abs(values.std().item<double>() / deviation - 1) < 10 / root);
}

TEST_CASE("samples have the mean and deviation of their distribution") {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const std::vector<std::int64_t> shape = {400, 500};
    check_moments(bernoulli(0.3, shape, dtype, kStream), 0.3, std::sqrt(0.21));
    check_moments(uniform(-1, 2, shape, dtype, kStream), 0.5, 3 / std::sqrt(12.0));
    check_moments(normal(1, 2, shape, dtype, kStream), 1, 2);
    check_moments(randint(0, 100, shape, dtype, kStream), 49.5, std::sqrt((10000.0 - 1) / 12));
    check_moments(exponential(2, shape, dtype, kStream), 0.5, 0.5);
  }
}

TEST_CASE("normal numbers have the tails of the normal distribution") {
  const auto sample = normal(0, 1, {1000000}, at::kFloat, kStream);
  for (const double bound : {1.0, 2.0, 3.0, 4.0}) {
    const double expected = 1e6 * std::erfc(bound / std::sqrt(2.0));
    const auto outside = static_cast<double>(sample.abs().gt(bound).sum().item<std::int64_t>());
    CHECK(std::abs(outside - expected) < 5 * std::sqrt(expected) + 1);
  }
}

TEST_CASE("neighbours are not correlated") {
  const auto sample = uniform(-1, 1, {1000000}, at::kDouble, kStream);
  for (const std::int64_t distance : {1, 2, 4, 16, 32, 64}) {
    const auto product = sample.narrow(0, 0, 900000) * sample.narrow(0, distance, 900000);
    CHECK(std::abs(product.mean().item<double>()) < 5.0 / 3 / std::sqrt(900000.0));
  }
}

TEST_CASE("every element type gets numbers within the bounds") {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto sample = uniform(0, 1, {100000}, dtype, kStream).to(at::kDouble);
    CHECK(sample.min().item<double>() >= 0);
    CHECK(sample.max().item<double>() < 1);
    CHECK(exponential(1, {100000}, dtype, kStream).gt(0).all().item<bool>());
  }
  for (const auto dtype : {at::kLong, at::kInt, at::kShort, at::kChar, at::kByte}) {
    const auto sample = randint(3, 7, {10000}, dtype, kStream);
    CHECK(sample.min().item<std::int64_t>() == 3);
    CHECK(sample.max().item<std::int64_t>() == 6);
    CHECK(bernoulli(0.5, {1000}, dtype, kStream).max().item<std::int64_t>() == 1);
  }
  CHECK(bernoulli(0.5, {1000}, at::kBool, kStream).any().item<bool>());
}

TEST_CASE("a probability of one keeps all, of zero none, and a tensor of them each its own") {
  CHECK(bernoulli(1.0, {1000}, at::kFloat, kStream).eq(1).all().item<bool>());
  CHECK(bernoulli(0.0, {1000}, at::kFloat, kStream).eq(0).all().item<bool>());
  const auto chances = at::tensor({0.0, 1.0, 0.5}).repeat({1000});
  const auto sample = bernoulli(chances, at::kFloat, kStream).view({1000, 3});
  CHECK(sample.select(1, 0).sum().item<float>() == 0);
  CHECK(sample.select(1, 1).sum().item<float>() == 1000);
  CHECK(std::abs(sample.select(1, 2).sum().item<float>() - 500) < 80);
  CHECK(at::equal(bernoulli(at::full({777}, 0.25), at::kFloat, kStream),
                  bernoulli(0.25, {777}, at::kFloat, kStream)));
}

TEST_CASE("parameters out of range are errors") {
  CHECK_THROWS_WITH_AS(bernoulli(1.5, {2}, at::kFloat, kStream),
                       "random: the probability of bernoulli is 1.5, not within 0 … 1", Error);
  CHECK_THROWS_WITH_AS(randint(4, 4, {2}, at::kLong, kStream),
                       "random: randint from 4 to 4 is an empty interval", Error);
  CHECK_THROWS_WITH_AS(normal(0, -1, {2}, at::kFloat, kStream),
                       "random: the deviation of normal is -1, which is negative", Error);
  CHECK_THROWS_WITH_AS(uniform(0, 1, {2}, at::kLong, kStream),
                       "random: uniform makes floating-point tensors, asked for Long", Error);
}

static at::Tensor permutation(const RandomStream& stream) {
  const auto op = find_operator("aten::randperm.generator");
  return draw_whole(op.value(), {100, c10::IValue(), at::kLong, c10::IValue(), at::Device(at::kCPU), false},
                    stream, at::kCPU)
      .at(0);
}

TEST_CASE("what ATen draws whole follows seed, step and ordinal, and leaves the default generator alone") {
  at::manual_seed(1);
  const auto untouched = at::rand({4});
  at::manual_seed(1);
  const auto drawn = permutation(kStream);
  CHECK(at::equal(at::rand({4}), untouched));
  CHECK(at::equal(std::get<0>(drawn.sort()), at::arange(100)));
  CHECK(at::equal(permutation(kStream), drawn));
  for (const auto& [seed, step, ordinal] : {std::array<std::uint64_t, 3>{8, 7, 3},
                                            {0x1234567890ULL, 8, 3},
                                            {0x1234567890ULL, 7, 4},
                                            {0x1234567890ULL, 7 + (1ULL << 32), 3}})
    CHECK_FALSE(at::equal(permutation({.seed = seed, .step = step, .ordinal = ordinal}), drawn));
}

TEST_CASE("what ATen draws whole is contiguous, and an operator without a generator is refused") {
  const auto rates = at::ones({4, 3}).t();
  CHECK(draw_whole(find_operator("aten::poisson").value(), {rates, c10::IValue()}, kStream, at::kCPU)
            .at(0)
            .is_contiguous());
  CHECK_THROWS_AS(draw_whole(find_operator("aten::exp").value(), {rates}, kStream, at::kCPU), Error);
}
