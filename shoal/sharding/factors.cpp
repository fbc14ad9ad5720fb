// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/factors.h"

#include <map>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::sharding {

// A letter, or a dim of the star by its distance from the star's end.
using Name = std::pair<char, int>;

namespace {

struct Dim {
  Name name;
  std::int64_t unit = 1;
};

}  // namespace

using Dims = std::vector<std::optional<Dim>>;  // nothing for those that stay whole

static Dims dims_in(std::string_view letters) {
  Dims dims;
  std::int64_t unit = 0;
  for (const char letter : letters) {
    if (letter >= '0' && letter <= '9') {
      unit = unit * 10 + (letter - '0');
      continue;
    }
    dims.push_back(letter == '.' ? std::nullopt : std::optional(Dim{{letter, 0}, unit == 0 ? 1 : unit}));
    unit = 0;
  }
  return dims;
}

// Which factor each dim is.
static Dims names_of(std::string_view letters, int num_dims) {
  const std::size_t star = letters.find_first_of("*~");
  Dims dims = dims_in(letters.substr(0, star));
  if (star == std::string_view::npos) {
    const auto missing = static_cast<std::ptrdiff_t>(dims.size()) - num_dims;
    SHOAL_CHECK(missing >= 0, Internal, "rule: '", letters, "' for ", num_dims, " dims");
    dims.erase(dims.begin(), dims.begin() + missing);
    return dims;
  }
  const Dims after = dims_in(letters.substr(star + 1));
  const int num_star = num_dims - static_cast<int>(dims.size() + after.size());
  SHOAL_CHECK(num_star >= 0, Internal, "rule: '", letters, "' for ", num_dims, " dims");
  for (int i = num_star; i > 0; --i)
    dims.push_back(letters[star] == '~' ? std::nullopt : std::optional(Dim{{'*', i}}));
  dims.insert(dims.end(), after.begin(), after.end());
  return dims;
}

// Among the tensors of a cat, whatever their dims, one of shape [0] stands for nothing.
static bool is_nothing(const Shape& shape, const Operand& operand) {
  return shape == Shape{0} && operand.letters.size() > 1 &&
         operand.letters.find_first_of("*~") == std::string_view::npos;
}

namespace {

struct Known {
  Factor factor;
  std::int64_t size = 1;
};

}  // namespace

std::vector<Factor> factors_of(const std::vector<Operand>& in, const std::vector<Operand>& out,
                               const Shapes& in_shapes, const Shapes& out_shapes) {
  std::map<Name, Known> known;
  const auto match = [&](const std::vector<Operand>& operands, const Shapes& shapes,
                         std::vector<std::optional<Shard>> Factor::* cuts_of) {
    SHOAL_CHECK(operands.size() == shapes.size(), Internal, "rule: ", operands.size(), " operands for ",
                shapes.size(), " tensors");
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!shapes[i]) continue;
      const Shape& shape = *shapes[i];
      if (is_nothing(shape, operands[i])) continue;
      const auto names = names_of(operands[i].letters, static_cast<int>(shape.size()));
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        if (!names[dim] || shape[dim] == 1) continue;
        const auto& [key, unit] = *names[dim];
        const std::int64_t size = shape[dim] / unit;
        auto [entry, is_new] = known.try_emplace(key);
        Known& name = entry->second;
        if (is_new) {
          name.factor.letter = key.first;
          name.factor.in.resize(in.size());
          name.factor.out.resize(out.size());
          name.size = size;
        }
        SHOAL_CHECK(name.size == size && size * unit == shape[dim], Internal, "rule: dim ", dim, " of '",
                    operands[i].letters, "' is ", shape[dim], ", another of its factor ", name.size);
        (name.factor.*cuts_of)[i] = Shard{.dim = static_cast<int>(dim), .unit = unit};
      }
    }
  };
  match(in, in_shapes, &Factor::in);
  match(out, out_shapes, &Factor::out);
  std::vector<Factor> factors;
  for (auto& [name, entry] : known) factors.push_back(std::move(entry.factor));
  return factors;
}

}  // namespace shoal::sharding
