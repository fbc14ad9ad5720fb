// SPDX-License-Identifier: Apache-2.0
// The norms of tensors of which each rank has a part, as reductions that can be seen.
//
//   clip([%a, %b], max_norm)                      %s = sum_of_squares([%a]), all_reduce(%s) along what cuts %a,
//                                                 %t = sum_of_squares([%b]); clip_by([%s, %t], max_norm)
//   %w, %m, %v = lamb([%w], …)                    %w, %m, %v, %n = lamb_moments([%w], …, adds=[1]),
//                                                 all_reduce(%n) along what cuts any of them, lamb_step(…)
//
// An element counts once: of a tensor that an axis does not cut, though it cuts others, the first rank along
// it speaks for all (`adds`).
#pragma once

#include <optional>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/local.h"

namespace shoal::rewrite {

// For a clip of these gradients, which lie so; returns its outputs: norm, scale.
std::vector<ir::ValueId> add_clip(ir::Graph& made, const Place& place, const ir::Node& clip,
                                  const std::vector<ir::ValueId>& gradients,
                                  const std::vector<sharding::Layout>& layouts, const ir::TensorType& type);

// For an update by LAMB that reads this rank's parts, laid out as `in`; as it is where nothing is cut.
std::vector<std::optional<ir::ValueId>> add_lamb(ir::Graph& made, const Place& place, ir::Node lamb,
                                                 const std::vector<sharding::Layout>& in,
                                                 const std::vector<std::optional<ir::TensorType>>& types);

}  // namespace shoal::rewrite
