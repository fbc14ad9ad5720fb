// SPDX-License-Identifier: Apache-2.0
// The node that says what has to travel before it is decided how: partition makes one for each value and
// axis, gather_ahead and buckets put several into one, and packing makes messages of them.
//
//   %5 : f32[4, 4] = shoal::transfer(tensors=[%3], over=[], kind="all_reduce", axis="shard", combine="sum", …)
//
// Its attributes are lists, one item for each tensor: how the axis cuts it (dims, outers, units, wholes: of
// Parcel), how it was cut before (an all-to-all's), whether it is small and even; and `bytes`, of the whole
// tensor on all ranks, by which every rank decides alike.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/packing.h"

namespace shoal::rewrite {

bool is_transfer(const ir::Node& node);

// A node for these parcels; `bytes` of each whole tensor. Phase and module are the journey's.
ir::Node transfer_of(const Journey& journey, const std::vector<Parcel>& parcels,
                     const std::vector<std::int64_t>& bytes);

// What a transfer says; the index and the number of ranks, which it does not say, are left open.
Journey journey_in(const ir::Node& transfer);
// `from` and `over` are the node's own inputs.
std::vector<Parcel> parcels_in(const ir::Graph& graph, const ir::Node& transfer);
std::vector<std::int64_t> bytes_in(const ir::Node& transfer);

// Appends one transfer for all of what these say, of one kind along one axis; its inputs are mapped by `in`.
// Returns what comes of each tensor, node by node. `as`: their inputs are of that type, and so is what comes.
std::vector<ir::ValueId> add_joined(const ir::Graph& old, const std::vector<const ir::Node*>& transfers,
                                    const std::function<ir::ValueId(ir::ValueId)>& in, ir::Graph& made,
                                    std::optional<DType> as = {});

}  // namespace shoal::rewrite
