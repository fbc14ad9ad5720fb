// SPDX-License-Identifier: Apache-2.0
// What a reduction has to give: element by element, 16-bit floats by a table of all of them. Slow, and without
// a thought of reduce.cpp, which is tested by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shoal/base/dtype.h"
#include "shoal/comm/communicator.h"

namespace shoal::comm {

// As reduce() says it of `count` elements of each of `from`; of a NaN, which one it is is not said.
std::vector<std::byte> expected_reduction(DType dtype, ReduceOp op, std::int64_t count,
                                          std::span<const std::byte* const> from);

// Whether both are the same to the bit, or NaN; `index` counts elements.
bool same_element(DType dtype, const std::byte* a, const std::byte* b, std::int64_t index);

}  // namespace shoal::comm
