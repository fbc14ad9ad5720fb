// SPDX-License-Identifier: Apache-2.0
// The rule language: the dims of an op's tensors as letters.
//
//   self:mk mat2:kn -> mn       arguments by their schema's names, then outputs, by commas
//                               the same letter is the same factor, of one size;
//                               an argument that holds a list has the dims for each
//                               item of it
//   self:B..                    a capital: no part of it may be empty, the op refuses that
//   .                           a dim that stays whole
//   *                           any number of dims, each a factor, matched from the right as ATen broadcasts
//   ~                           any number of dims that stay whole
//   +n                          an addend: where the result becomes a summand, this one has to be one too
//   o/i                         an output that does not depend on factor i: cut along i, every rank has it
//                               whole
//   4h                          a dim that is the factor h times 4, cut in units of 4
//   o@max                       an output that is Partial(max) along the factors that it lacks; or @min
//
// A tensor with fewer dims than letters has the last of them. A dim of size 1 where the factor is larger is
// broadcast: it stays whole. A factor that no input has may be cut in the output alone. A factor that an
// output lacks leaves that output Partial(sum). An item of a list that is of shape [0], where letters say
// more dims, is one of cat's tensors that are not there.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/sharding/layout.h"

namespace shoal::sharding {

// The dims of one tensor, as written.
struct Operand {
  std::string_view letters;  // and units, without '+' and what follows '/' or '@'
  bool addend = false;
  std::string_view without = {};  // what follows '/'
  Combine combine = Combine::Sum;
};

// A direction that several tensors share: how each of them is cut along it, if at all.
struct Factor {
  char letter = 0;  // '*' for those of a star
  std::vector<std::optional<Shard>> in, out;
};

// An undefined output has no shape. Throws Internal where letters and shapes do not fit: the rule is wrong.
using Shapes = std::vector<std::optional<Shape>>;
std::vector<Factor> factors_of(const std::vector<Operand>& in, const std::vector<Operand>& out,
                               const Shapes& in_shapes, const Shapes& out_shapes);

}  // namespace shoal::sharding
