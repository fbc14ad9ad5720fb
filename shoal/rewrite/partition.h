// SPDX-License-Identifier: Apache-2.0
// From the placed graph of all ranks together to the graph of one: local shapes, and the only maker of
// collectives. Data parallel, two ranks:
//
//   placed                                   rank 0
//   %x [8, 4] S(0)                           %x [4, 4]
//   %dw [4, 4] P(sum) = mm(t(%x), %dy)       %a = mm(t(%x), %dy)
//   return gradient "w" %dw R                %dw = shoal::all_reduce(tensors=[%a], axis="replicate", …)
//
// Every rank's graph has the same nodes in the same order, collectives included; shapes, and what a rank
// keeps of a value, differ. Collectives, on tensors of one dtype, along one axis of the mesh:
//
//   shoal::all_reduce(tensors, axis, combine, in_place) -> as many; in_place: nobody reads the tensors after
//   shoal::reduce_scatter(tensors, axis, combine, dims, outers, units) -> a part of each: dim, outer, unit of
//   its
//     sharding::Shard
//   shoal::all_gather(tensors, axis, dims, outers, units, wholes) -> each of them whole: `wholes` elements of
//   dim shoal::gather_into(wholes, parts, axis, dims, outers, units) -> wholes, written over
//   shoal::lamb(…, axes, adds): norms of tensors that are cut over the axes, "shard tensor" say; for each
//   axis and tensor
//     1 where this rank's part counts
//   shoal::all_to_all(self, axis, from, to) -> self's cut of [dim, outer, unit, whole] for another
// and what a rank takes of what it has: shoal::part(self, dim, outer, unit, index, count), a view if it can
// be.
#pragma once

#include <cstdint>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/place.h"

namespace shoal::rewrite {

struct PartitionOptions {
  std::int64_t bucket_bytes = 25 << 20;   // gradients are reduced when so many bytes are there
  std::int64_t gather_bytes = 256 << 10;  // parameters are gathered together up to so many
};

ir::Graph partition(const Placed& placed, int rank, const PartitionOptions& options = {});

}  // namespace shoal::rewrite
