// SPDX-License-Identifier: Apache-2.0
// From the placed graph of all ranks together to the graph of one: local shapes, and the only maker of
// messages, one for each value and axis. Data parallel, two ranks:
//
//   placed                                   rank 0
//   %x [8, 4] S(0)                           %x [4, 4]
//   %dw [4, 4] P(sum) = mm(t(%x), %dy)       %a = mm(t(%x), %dy)
//   return gradient "w" %dw R                %dw = shoal::transfer(tensors=[%a], kind="all_reduce", …)
//
// Every rank's graph has the same nodes in the same order, transfers included (transfer.h); shapes, and what a
// rank keeps of a value, differ. What travels together, and as which messages, are rewrites of their own:
// gather_ahead.h, buckets.h, packing.h. What a rank takes of what it has:
//
//   shoal::part(self, dim, outer, unit, index, count)    a view if it can be
//
// The norms that an update wants of whole tensors are reductions like others:
//
//   clip(%dw)                                sum_of_squares(%dw), all_reduce, clip_by
//   %w, %m, %v = lamb(…)                     %w, %m, %v, %n = lamb_moments(…), all_reduce(%n), lamb_step(…)
#pragma once

#include "shoal/ir/graph.h"
#include "shoal/rewrite/place.h"

namespace shoal::rewrite {

ir::Graph partition(const Placed& placed, int rank);

}  // namespace shoal::rewrite
