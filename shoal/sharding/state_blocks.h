// SPDX-License-Identifier: Apache-2.0
// Optimizer state in 8 bits: codes, and for each block of elements the largest absolute value, which codes are
// shares of. Blocks are consecutive elements of the whole tensor, in row-major order; the last may be shorter.
// The maxima have the tensor's outer dims, so that a layout that cuts no block cuts them alike:
//
//   codes u8[512, 2048]    maxima f32[512, 8]     [S(0)] and [S(1)] of both
//   codes u8[300, 100]     maxima f32[118]        [S(0, weights=192:108)] of both: 192 x 100 are 75 blocks
#pragma once

#include <cstdint>
#include <optional>

#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::sharding {

inline constexpr std::int64_t kStateBlock = 256;    // elements
inline constexpr std::int64_t kFewestCoded = 4096;  // a tensor of fewer keeps state in its own type

bool is_coded(const Shape& shape);
Shape maxima_of(const Shape& shape);

// Where the maxima are, of codes in that layout; none where it cuts a block.
std::optional<Layout> layout_of_maxima(const Mesh& mesh, const Layout& codes, const Shape& shape);

// How many of dim 0 stay together so that no block is cut.
std::int64_t rows_together(const Shape& shape);

}  // namespace shoal::sharding
