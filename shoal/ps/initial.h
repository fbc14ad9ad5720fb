// SPDX-License-Identifier: Apache-2.0
// What a row begins with: a function of the table's seed and name and of the key, wherever and whenever the
// row is made.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace shoal::ps {

enum class InitialRule : std::uint8_t {
  Constant,  // scale
  Uniform,   // −scale … scale
  Normal,    // of deviation scale
};

std::string_view name_of(InitialRule rule);
std::optional<InitialRule> parse_initial(std::string_view name);

struct Initial {
  InitialRule rule = InitialRule::Uniform;
  float scale = 0.01f;
  friend bool operator==(const Initial&, const Initial&) = default;
};

using Stream = std::array<std::uint32_t, 2>;
Stream stream_of(std::uint64_t seed, std::string_view table);

void fill(const Initial& initial, Stream stream, std::uint64_t key, std::uint32_t part,
          std::span<float> values);
void fill(const Initial& initial, Stream stream, std::uint64_t key, std::uint32_t part,
          std::span<double> values);  // the same floats

// In [0, 1), for one key and step.
double draw(Stream stream, std::uint64_t key, std::uint64_t step);

}  // namespace shoal::ps
