// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/initial.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "shoal/base/names.h"
#include "shoal/base/philox.h"
#include "shoal/ps/hash.h"

namespace shoal::ps {

static constexpr Names<InitialRule, 3> kInitialRules = {{
    {InitialRule::Constant, "constant"},
    {InitialRule::Uniform, "uniform"},
    {InitialRule::Normal, "normal"},
}};

// The counter's last word: parts count from 0, so this one is nobody's.
static constexpr std::uint32_t kDraws = ~std::uint32_t{0};

std::string_view name_of(InitialRule rule) { return name_in(kInitialRules, rule); }
std::optional<InitialRule> parse_initial(std::string_view name) { return parse_in(kInitialRules, name); }

Stream stream_of(std::uint64_t seed, std::string_view table) {
  const std::uint64_t hash = mixed(mixed(seed) ^ hash_of(table));
  return {static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)};
}

// 24 bits, as a float has.
static float unit(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Box and Muller, of two words; in double, so that the float is the same with any libm.
static std::array<float, 2> normal(std::uint32_t a, std::uint32_t b) {
  const double radius = std::sqrt(-2 * std::log((a + 1.0) * 0x1p-32));
  const double angle = 2 * std::numbers::pi * b * 0x1p-32;
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

template <class T>
static void fill_with(const Initial& initial, Stream stream, std::uint64_t key, std::uint32_t part,
                      std::span<T> values) {
  if (initial.rule == InitialRule::Constant) {
    std::ranges::fill(values, T{initial.scale});
    return;
  }
  for (std::size_t begin = 0; begin < values.size(); begin += 4) {
    const auto words = philox({static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32),
                               static_cast<std::uint32_t>(begin / 4), part},
                              stream);
    std::array<float, 4> four;
    if (initial.rule == InitialRule::Uniform) {
      for (std::size_t i = 0; i < 4; ++i) four[i] = initial.scale * (2 * unit(words[i]) - 1);
    } else {
      for (std::size_t i = 0; i < 4; i += 2) {
        const auto pair = normal(words[i], words[i + 1]);
        four[i] = initial.scale * pair[0];
        four[i + 1] = initial.scale * pair[1];
      }
    }
    std::copy_n(four.begin(), std::min<std::size_t>(4, values.size() - begin),
                values.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

void fill(const Initial& initial, Stream stream, std::uint64_t key, std::uint32_t part,
          std::span<float> values) {
  fill_with(initial, stream, key, part, values);
}
void fill(const Initial& initial, Stream stream, std::uint64_t key, std::uint32_t part,
          std::span<double> values) {
  fill_with(initial, stream, key, part, values);
}

double draw(Stream stream, std::uint64_t key, std::uint64_t step) {
  const std::uint64_t mixed_step = mixed(step);
  const auto words = philox({static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32),
                             static_cast<std::uint32_t>(mixed_step), kDraws},
                            {stream[0], stream[1] ^ static_cast<std::uint32_t>(mixed_step >> 32)});
  return words[0] * 0x1p-32;
}

}  // namespace shoal::ps
