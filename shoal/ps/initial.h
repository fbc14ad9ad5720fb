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

std::string_view name_of(InitialRule rule);                       // "constant", "uniform", "normal"
std::optional<InitialRule> parse_initial(std::string_view name);  // the inverse; none: there is no such

struct Initial {                            // of each value of a part, by itself
  InitialRule rule = InitialRule::Uniform;  // what it is drawn by
  float scale = 0.01f;                      // as the rule has it
  friend bool operator==(const Initial&, const Initial&) = default;
};

// What all draws of a table begin with.
using Stream = std::array<std::uint32_t, 2>;
Stream stream_of(std::uint64_t seed, std::string_view table);

// What part number `part` of the key's row begins with; `values`: as many as the part is wide.
void fill(const Initial& initial, Stream stream, std::uint64_t key, std::uint32_t part,
          std::span<float> values);
void fill(const Initial& initial, Stream stream, std::uint64_t key, std::uint32_t part,
          std::span<double> values);  // the same floats

// A number in [0, 1) for one key and step: what admission by probability draws.
double draw(Stream stream, std::uint64_t key, std::uint64_t step);

}  // namespace shoal::ps
