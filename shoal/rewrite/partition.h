// SPDX-License-Identifier: Apache-2.0
// From the placed graph of all ranks together to the graph of one: local shapes, and the only maker of
// collectives. Data parallel, two ranks:
//
//   placed                                   rank 0
//   %x [8, 4] S(0)                           %x [4, 4]
//   %dw [4, 4] P(sum) = mm(t(%x), %dy)       %a = mm(t(%x), %dy)
//   return gradient "w" %dw R                %dw = shoal::all_reduce(self=%a, axis="replicate", combine="sum")
//
// Every rank's graph has the same nodes in the same order, collectives included; shapes, and what a rank
// keeps of a value, differ. The messages are those of sharding/collective.h, what is packed for them is that
// of packing.h; and what a rank takes of what it has:
//
//   shoal::part(self, dim, outer, unit, index, count)    a view if it can be
//
// The norms that an update wants of whole tensors are reductions like others:
//
//   clip(%dw)                                sum_of_squares(%dw), all_reduce, clip_by
//   %w, %m, %v = lamb(…)                     %w, %m, %v, %n = lamb_moments(…), all_reduce(%n), lamb_step(…)
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
