// SPDX-License-Identifier: Apache-2.0
// Attention whose queries share heads of keys and values (grouped-query attention, Ainslie et al. 2023), cut by
// heads among more ranks than there are of these: each head stands as often as there are ranks that read it.
//
//   four heads of queries share two of keys and values, which are to be four
//   %3 = shoal::attention(query=%0, key=%1, …)   |   %3 = aten::repeat of %1: [B, 2, T, D] -> [B, 2, 2, T, D]
//                                                |   %5 = shoal::attention(query=%0, key=%4, …)    %4: [B, 4, T, D]
//
// On the way back the gradients of a head's copies are summed.
#pragma once

#include <cstdint>
#include <map>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// How many heads of keys and values it takes until these, and those of the queries, are as many on each of the ranks;
// 0 where that is so, where it cannot be, and for a node that is no attention.
std::int64_t heads_for(const ir::Graph& graph, const ir::Node& node, std::int64_t ranks);

// These nodes get so many heads of keys and values (heads_for); the results are equal up to rounding. Throws Internal
// for another node. Value and node ids are new.
ir::Graph with_heads(ir::Graph graph, const std::map<ir::NodeId, std::int64_t>& nodes);

}  // namespace shoal::rewrite
