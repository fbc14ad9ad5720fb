// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/memory_order.h"

#include <algorithm>
#include <cstddef>

namespace shoal::rewrite {

std::optional<std::vector<std::int64_t>> order_in_memory(const ir::TensorType& type) {
  std::vector<std::int64_t> order(type.shape.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  const auto at = [](const auto& list, std::int64_t dim) { return list[static_cast<std::size_t>(dim)]; };
  std::ranges::stable_sort(order, [&](auto a, auto b) { return at(type.strides, a) > at(type.strides, b); });
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    if (at(type.strides, order[i]) != stride) return std::nullopt;
    stride *= at(type.shape, order[i]);
  }
  return order;
}

std::vector<std::int64_t> in_order(const std::vector<std::int64_t>& list,
                                   const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> ordered;
  for (const std::int64_t dim : order) ordered.push_back(list[static_cast<std::size_t>(dim)]);
  return ordered;
}

std::vector<std::int64_t> inverse_of(const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> inverse(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    inverse[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return inverse;
}

}  // namespace shoal::rewrite
