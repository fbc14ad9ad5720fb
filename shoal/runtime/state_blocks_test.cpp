// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/state_blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace state_blocks_test {

using namespace shoal::runtime;

TEST_CASE("codes are those of dynamic tree quantisation: rising, from power to power twice as many") {
  for (const bool is_signed : {true, false}) {
    const std::vector<float> all(shares(is_signed), shares(is_signed) + 256);
    CHECK(std::ranges::is_sorted(all));
    CHECK(std::ranges::adjacent_find(all) == all.end());
    CHECK(all.back() == 1);
    CHECK(std::ranges::count(all, 0.0F) == 1);
    for (int power = 0; power < 7; ++power) {  // from 0.1 to 1, from 0.01 to 0.1, …
      const double from = 0.1 * std::pow(10, -power), to = std::pow(10, -power);
      const auto within = [&](double sign) {
        return std::ranges::count_if(all,
                                     [&](float share) { return sign * share > from && sign * share < to; });
      };
      CHECK(within(1) == 1 << ((is_signed ? 6 : 7) - power));
      CHECK(within(-1) == (is_signed ? 1 << (6 - power) : 0));
    }
  }
}

TEST_CASE("a value becomes the nearest share of its block's largest, and none above zero an unsigned zero") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> power(-9, 0);
  for (const bool is_signed : {true, false})
    for (const int size : {1, 255, 256, 257, 1000, 1024}) {
      std::vector<float> values(static_cast<std::size_t>(size)), back(values.size());
      for (float& value : values) value = normal(random) * std::pow(10.0F, power(random));
      if (!is_signed)
        for (float& value : values) value = std::abs(value);
      std::vector<std::uint8_t> codes(values.size());
      std::vector<float> maxima(static_cast<std::size_t>((size + 255) / 256));
      store_codes(values.data(), is_signed, codes.data(), maxima.data(), size);
      load_codes(codes.data(), maxima.data(), is_signed, back.data(), size);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i / 256 * 256);
        const auto end = std::min(values.end(), begin + 256);
        const float largest = std::abs(
            *std::max_element(begin, end, [](float a, float b) { return std::abs(a) < std::abs(b); }));
        CHECK(maxima[i / 256] == largest);
        const float share = values[i] / largest;
        const float *all = shares(is_signed), *nearest = all;
        for (const float* each = all; each < all + 256; ++each)
          if (std::abs(*each - share) < std::abs(*nearest - share)) nearest = each;
        if (!is_signed && share > 0 && *nearest == 0) ++nearest;
        CHECK(codes[i] == nearest - all);
        CHECK(back[i] == *nearest * largest);
      }
    }
}

TEST_CASE("each float around a border of two codes, and each of a fine row, is that of the nearest share") {
  for (const bool is_signed : {true, false}) {
    const float* const all = shares(is_signed);
    std::vector<float> values;
    for (int i = 0; i < 255; ++i) {
      const float border = (all[i] + all[i + 1]) / 2;
      values.insert(values.end(), {std::nextafter(border, -1.0F), border, std::nextafter(border, 2.0F)});
    }
    for (float value = 1; value > 1e-9F; value *= 0.9997F) values.insert(values.end(), {value, -value});
    if (!is_signed) std::erase_if(values, [](float value) { return value < 0; });
    for (const float value : values) {
      const float pair[2] = {value, 1};
      std::uint8_t codes[2];
      float largest = 0;
      store_codes(pair, is_signed, codes, &largest, 2);
      int wanted = 0;
      while (wanted < 255 && value > (all[wanted] + all[wanted + 1]) / 2) ++wanted;
      if (!is_signed && value > 0) wanted = std::max(wanted, 1);
      CAPTURE(value);
      CHECK(codes[0] == wanted);
    }
  }
}

TEST_CASE("a block of zeros stays zeros, and new state is zeros") {
  for (const bool is_signed : {true, false}) {
    std::vector<double> values(300), back(300, 1);
    std::vector<std::uint8_t> codes(300);
    std::vector<float> maxima(2, 1);
    store_codes(values.data(), is_signed, codes.data(), maxima.data(), 300);
    CHECK(maxima == std::vector<float>(2));
    load_codes(codes.data(), maxima.data(), is_signed, back.data(), 300);
    CHECK(back == values);
    codes.assign(300, 0);  // as it is made
    load_codes(codes.data(), maxima.data(), is_signed, back.data(), 300);
    CHECK(back == values);
  }
}

TEST_CASE("bfloat16 is brought over as it is, in any type") {
  const std::vector<float> values = {1, -1.5F, 1 + 0x1p-7F, 0, -0x1p-130F};
  std::vector<c10::BFloat16> kept(values.begin(), values.end());
  std::vector<float> back(values.size());
  load_state(kept.data(), back.data(), std::ssize(values));
  CHECK(back == values);
  std::vector<double> wide(values.size());
  load_state(kept.data(), wide.data(), std::ssize(values));
  CHECK(wide == std::vector<double>(values.begin(), values.end()));
}

}  // namespace state_blocks_test
