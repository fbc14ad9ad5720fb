// SPDX-License-Identifier: Apache-2.0
// A placed step as text, and what has to hold of one.
//
//   placed "shard=4" gathers=again
//   graph captured
//   %0 = parameter "w" : f32[4, 4]
//   …
//   layouts
//   source 0 [S(0)]                        as it is kept
//   node 2 in [S(0)] [R] out [P(sum)]      "parts" at the end: as another op, which knows where its part begins
//   again 3 in [R] out [R]                 other layouts that this view may have
//   value 5 [R]                            as it is handed on
//   result 0 [R]
#pragma once

#include <string>
#include <string_view>

#include "shoal/rewrite/place.h"

namespace shoal::rewrite {

std::string to_text(const Placed& placed);
// Throws InvalidInput with the line that is wrong.
Placed placed_from_text(std::string_view text);

// Throws Internal where something has no layout, one for another mesh, or one that does not fit its shape.
void verify(const Placed& placed);

}  // namespace shoal::rewrite
