// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/stochastic_rounding.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "shoal/base/error_test.h"

namespace stochastic_rounding_test {

using namespace shoal;
using namespace shoal::runtime;
using c10::BFloat16;

static std::vector<float> values_of(std::int64_t size) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < size; ++i) values.push_back(std::sin(static_cast<float>(i)) * 3);
  return values;
}

static std::vector<BFloat16> stored(const std::vector<float>& from, const Draw& draw,
                                    std::uint32_t tensor = 0) {
  std::vector<BFloat16> to(from.size());
  const auto size = static_cast<std::int64_t>(from.size());
  for (std::int64_t begin = 0; begin < size; begin += 7)  // as pieces of threads come
    store_stochastic(from.data() + begin, draw, tensor, begin, to.data() + begin,
                     std::min<std::int64_t>(7, size - begin));
  return to;
}

TEST_CASE("parts of a tensor are rounded as the whole is, wherever they are cut") {
  const std::int64_t rows = 12, columns = 20;
  const auto values = values_of(rows * columns);
  const Draw draw{.seed = 5, .update = 3, .parameter = 9};
  const auto whole = stored(values, draw);
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const std::vector<std::pair<Ranges, Ranges>> parts = {
      {{{0, 12}}, {{0, 20}}}, {{{4, 8}}, {{0, 20}}}, {{{0, 12}}, {{5, 10}}}, {{{6, 12}}, {{3, 6}, {13, 16}}}};
  for (const auto& [down, across] : parts) {
    std::vector<std::int64_t> words = {2, rows, columns};
    for (const Ranges& ranges : {down, across}) {
      words.push_back(std::ssize(ranges));
      for (const auto& [begin, end] : ranges) words.insert(words.end(), {begin, end});
    }
    words.push_back(77);
    Draw own = draw;
    CHECK(own.places.read(words).front() == 77);  // the next parameter's
    std::vector<float> mine;
    std::vector<BFloat16> wanted;
    for (const auto& [top, bottom] : down)
      for (std::int64_t row = top; row < bottom; ++row)
        for (const auto& [left, right] : across)
          for (std::int64_t column = left; column < right; ++column) {
            const auto place = static_cast<std::size_t>(row * columns + column);
            mine.push_back(values[place]);
            wanted.push_back(whole[place]);
          }
    CHECK(stored(mine, own) == wanted);
  }
  Places places;
  CHECK(error_of([&] { places.read(std::vector<std::int64_t>{2, 5}); }).find("places end in the middle") !=
        std::string::npos);
}

TEST_CASE("chance is another one for each seed, update, parameter and place") {
  const std::vector<float> same(64, 1 + 0x1p-8f);  // in the middle of two neighbours
  const auto first = stored(same, {.seed = 1, .update = 1, .parameter = 1});
  CHECK(first == stored(same, {.seed = 1, .update = 1, .parameter = 1}));
  CHECK(first != stored(same, {.seed = 2, .update = 1, .parameter = 1}));
  CHECK(first != stored(same, {.seed = 1, .update = 2, .parameter = 1}));
  CHECK(first != stored(same, {.seed = 1, .update = 1, .parameter = 2}));
  CHECK(first != stored(same, {.seed = 1, .update = 1, .parameter = 1}, 1));
  std::int64_t up = 0;
  for (const BFloat16 each : first) up += static_cast<float>(each) > 1 ? 1 : 0;
  CHECK(up > 16);
  CHECK(up < 48);
}

TEST_CASE("what bfloat16 holds stays, and so does what is not finite") {
  const float infinite = std::numeric_limits<float>::infinity();
  const std::vector<float> exact = {0, -0.0f, 1, -1.5f, infinite, -infinite};
  const auto made = stored(exact, {});
  for (std::size_t i = 0; i < exact.size(); ++i) CHECK(static_cast<float>(made[i]) == exact[i]);
  CHECK(std::isnan(static_cast<float>(stored({std::nanf("")}, {})[0])));
  std::vector<BFloat16> weights(exact.size()), compensations(exact.size());
  store_compensated(exact.data(), weights.data(), compensations.data(), std::ssize(exact));
  std::vector<float> again(exact.size());
  load_weights(weights.data(), compensations.data(), again.data(), std::ssize(exact));
  CHECK(again == exact);
}

TEST_CASE("weight and compensation have sixteen bits of a value together") {
  const auto values = values_of(1000);
  std::vector<BFloat16> weights(values.size()), compensations(values.size());
  store_compensated(values.data(), weights.data(), compensations.data(), std::ssize(values));
  std::vector<float> again(values.size());
  load_weights(weights.data(), compensations.data(), again.data(), std::ssize(values));
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(weights[i] == BFloat16(values[i]));
    CHECK(std::abs(again[i] - values[i]) <= 0x1p-17f * std::abs(values[i]));
  }
}

}  // namespace stochastic_rounding_test
