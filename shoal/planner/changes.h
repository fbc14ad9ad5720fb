// SPDX-License-Identifier: Apache-2.0
// What it takes until a value lies otherwise over the axes that are asked for, in the order of axes that takes the
// least:
//
//   [P(sum), S(0)] -> [S(0), R]       the second axis' parts are gathered, then the first scatters sums; or the
//                                     first sums half of it, the second gathers, and each keeps its part
//
// As sharding/redistribute.h goes, which takes the way of fewest bytes: one axis at a time, straight from what it has
// to what it is to have, or by way of whole, and of what the others leave at that moment.
#pragma once

#include <optional>

#include "shoal/planner/find.h"
#include "shoal/planner/ways.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::planner {

// Of a value of that shape, which has so many bytes on all ranks of these axes together; nothing where there is no way.
std::optional<double> seconds_of_change(const sharding::Mesh& mesh, const Question& question,
                                        const Ways& ways, const sharding::Layout& from,
                                        const sharding::Layout& to, const sharding::Shape& shape,
                                        double bytes);

}  // namespace shoal::planner
