// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/factors.h"

#include <map>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::sharding {

// A letter, or a dim of the star by its distance from the star's end.
using Name = std::pair<char, int>;

// Which factor each dim is; nothing for those that stay whole.
static std::vector<std::optional<Name>> names_of(std::string_view letters, int dims) {
  const std::size_t star = letters.find_first_of("*~");
  std::vector<std::optional<Name>> names;
  const auto add = [&](char letter) {
    names.push_back(letter == '.' ? std::nullopt : std::optional<Name>({letter, 0}));
  };
  if (star == std::string_view::npos) {
    for (const char letter : letters) add(letter);
    const auto missing = static_cast<std::ptrdiff_t>(names.size()) - dims;
    SHOAL_CHECK(missing >= 0, Internal, "rule: '", letters, "' for ", dims, " dims");
    names.erase(names.begin(), names.begin() + missing);
    return names;
  }
  const int num_star = dims - static_cast<int>(letters.size()) + 1;
  SHOAL_CHECK(num_star >= 0, Internal, "rule: '", letters, "' for ", dims, " dims");
  for (const char letter : letters.substr(0, star)) add(letter);
  for (int i = num_star; i > 0; --i)
    names.push_back(letters[star] == '~' ? std::nullopt : std::optional<Name>({'*', i}));
  for (const char letter : letters.substr(star + 1)) add(letter);
  return names;
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
                         std::vector<std::optional<int>> Factor::* dims_of) {
    SHOAL_CHECK(operands.size() == shapes.size(), Internal, "rule: ", operands.size(), " operands for ",
                shapes.size(), " tensors");
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!shapes[i]) continue;
      const Shape& shape = *shapes[i];
      const auto names = names_of(operands[i].letters, static_cast<int>(shape.size()));
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        if (!names[dim] || shape[dim] == 1) continue;
        auto [entry, is_new] = known.try_emplace(*names[dim]);
        Known& name = entry->second;
        if (is_new) {
          name.factor.letter = names[dim]->first;
          name.factor.in.resize(in.size());
          name.factor.out.resize(out.size());
          name.size = shape[dim];
        }
        SHOAL_CHECK(name.size == shape[dim], Internal, "rule: dim ", dim, " of '", operands[i].letters,
                    "' is ", shape[dim], ", another of its factor ", name.size);
        (name.factor.*dims_of)[i] = static_cast<int>(dim);
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
