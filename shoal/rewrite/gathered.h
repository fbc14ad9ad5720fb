// SPDX-License-Identifier: Apache-2.0
// Which values are parameters that are kept in parts and gathered for use, or views and casts of such a one:
// what is made anew for backward.
//
//   %w kept [S(0)], used [R]
//   %t = t(%w)                      gathered: %w, %t
#pragma once

#include <vector>

#include "shoal/rewrite/place.h"

namespace shoal::rewrite {

struct Gathered {
  std::vector<bool> values;  // by value of the whole graph

  bool contains(ir::ValueId value) const { return values[value.index]; }
};

Gathered gathered_of(const Placed& placed);

}  // namespace shoal::rewrite
