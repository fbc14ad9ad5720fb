// SPDX-License-Identifier: Apache-2.0
// Offsets of an EmbeddingBag on several ranks: they count the ids of all ranks, as those of one device do. Ranks that
// each give a batch of their own, whose offsets begin at 0, would have other bags than they think:
//
//   ids     [a, b, c | d, e]      parts of one batch: offsets [0, 2 | 3, 4]
//                                 batches of their own:       [0, 2 | 0, 1], which is refused when a step runs
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// Whether ranks have parts of an input of so many dims.
using IsCut = std::function<bool(const std::string& input, std::size_t num_dims)>;

// Of a captured graph, for so many ranks that share its batch: all find alike that offsets go down, or that with one bag a
// rank each rank's are 0, and name input and module.
ir::Graph check_bag_offsets(const ir::Graph& graph, std::int64_t ranks, const IsCut& is_cut);

}  // namespace shoal::rewrite
