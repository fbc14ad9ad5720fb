// SPDX-License-Identifier: Apache-2.0
// Ranks of several hosts as one group: what crosses a link does so once for each host, whatever the order of
// ranks; all else stays within a host.
//
//   all_reduce    host a: 0 ─┐ sum at 0 ══ sum of both hosts ══ at 2 ┌─ 2 :host b
//                         1 ─┘                                       └─ 3
//
// Each host has a first rank, which speaks to those of the other hosts. Of S bytes (all_reduce, reduce, broadcast: of
// the buffer; else of all parts together) on H hosts, a host sends over its link
//
//   all_reduce       2 S (H-1)/H              broadcast, reduce    S, the root's or the others'
//   all_gather       its parts to each other  gather, scatter      its parts, once
//   reduce_scatter   the others' parts, summed up over its own ranks
//   all_to_all       what its ranks have for the others'
//
// Large buffers go in pieces, so that a host's own part overlaps the link's. Messages go straight from rank to
// rank.
#pragma once

#include <memory>
#include <vector>

#include "shoal/comm/communicator.h"

namespace shoal::comm {

// `all` is of all ranks and crosses hosts, `here` of this host's ranks, in their order in `all`.
// `first_ranks`: for each rank of `all` the first rank of its host (hosts.h). Called by all ranks of `all` at
// once. Throws InvalidInput where these do not fit together.
std::unique_ptr<Communicator> hierarchy(std::unique_ptr<Communicator> all, std::unique_ptr<Communicator> here,
                                        const std::vector<int>& first_ranks);

}  // namespace shoal::comm
