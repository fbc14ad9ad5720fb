// SPDX-License-Identifier: Apache-2.0
// How a value is sent whose elements lie without gaps, but in another order than its dims'.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// Dims in the order in which a value's elements lie, where they lie without gaps in another order than the
// dims'. It is then sent as its memory is, and looked at by its dims again where it comes to.
std::optional<std::vector<std::int64_t>> order_in_memory(const ir::TensorType& type);
// Of each dim, sizes or strides, in that order; and the order that leads back.
std::vector<std::int64_t> in_order(const std::vector<std::int64_t>& list,
                                   const std::vector<std::int64_t>& order);
std::vector<std::int64_t> inverse_of(const std::vector<std::int64_t>& order);

}  // namespace shoal::rewrite
