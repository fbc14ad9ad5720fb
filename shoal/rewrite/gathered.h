// SPDX-License-Identifier: Apache-2.0
// Which values are parameters that are kept in parts and gathered for use, or views and casts of such a one:
// what is made anew for backward, and in which order it is asked for.
//
//   %w kept [S(0)], used [R]
//   %t = t(%w)                      gathered: %w, %t
//   %y = mm(%x, %t)                 first uses of forward: %w
#pragma once

#include <array>
#include <vector>

#include "shoal/rewrite/place.h"

namespace shoal::rewrite {

struct Gathered {
  std::vector<bool> values;  // by value of the whole graph
  std::array<std::vector<ir::ValueId>, 2>
      first_uses;  // of the parameters, through views or not: in forward, in backward

  bool contains(ir::ValueId value) const { return values[value.index]; }
  const std::vector<ir::ValueId>& order(ir::Phase phase) const {
    return first_uses[phase == ir::Phase::Forward ? 0 : 1];
  }
};

Gathered gathered_of(const Placed& placed);

}  // namespace shoal::rewrite
