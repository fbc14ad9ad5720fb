// SPDX-License-Identifier: Apache-2.0
// How tensors travel: which are packed together, what each message is, what is unpacked after it. All of it
// are nodes of the graph, so that a program says what is sent, and its kernels decide nothing.
//
//   two gradients, small                     one that is cut by columns, or unevenly, over 3 ranks
//   %f = pack([%a, %b])                      %f = pack_parts([%a], …)               by rank, not by row
//   %g = all_reduce(%f)                      %g = all_to_all(%f, sends=[4, 4, 2])   what there is, no padding
//   %c, %d = unpack(%g)                      %p = combine(%g, count=3)
//
// A tensor of less than 64 KiB travels together with others like it, as a call costs more than its bytes;
// one whose parts lie one after the other is sent from where it is. The nodes beside the messages of
// sharding/collective.h:
//
//   shoal::pack(tensors, copies)                             -> flat: one after the other, all of it `copies` times
//   shoal::pack_parts(tensors, dims, outers, units, count)   -> flat: rank by rank, the part of each
//   shoal::unpack(self)                                      -> views of what is packed, shaped as their types say
//   shoal::unpack_parts(self, dims, outers, units, count)    -> each of them whole
//   shoal::unpack_into(wholes, self, dims, outers, units, count) -> the same, written over sources
//   shoal::combine(self, count, combine)                     -> of `count` equal rows one
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/sharding/collective.h"
#include "shoal/sharding/mesh.h"

namespace shoal::rewrite {

inline constexpr std::int64_t kSmall = 64 << 10;  // bytes of a whole tensor

// A tensor that is sent.
struct Parcel {
  ir::ValueId from;                    // in the graph that is made
  ir::TensorType to;                   // what comes of it: contiguous, or what it is written over
  ir::Role role = ir::Role::Gradient;  // of that
  sharding::Shard shard;   // how the axis cuts it; of an AllToAll: afterwards. Not of an AllReduce
  std::int64_t whole = 0;  // elements of the dim that `shard` cuts, before it does
  std::optional<sharding::Shard> before;  // of an AllToAll: as it was cut
  std::int64_t whole_before = 0;          // likewise
  std::optional<ir::ValueId> over;        // an AllGather writes over this source
  // Of every rank of the mesh alike, so that all have the same nodes.
  bool is_small = false;
  bool is_even = true;  // all parts have one size
};

struct Journey {
  sharding::Collective kind = sharding::Collective::AllReduce;
  std::string axis;
  int index = 0;  // this rank's along the axis
  int ranks = 1;
  std::optional<sharding::Combine> combine;
  ir::Phase phase = ir::Phase::Forward;
  std::string module;
  int stage = 0;
};

// A rank's graph with messages, and what is packed and unpacked around them, in place of its transfers
// (transfer.h).
ir::Graph pack(const ir::Graph& local, const sharding::Mesh& mesh, int rank);

// Appends the nodes and returns what comes of each parcel. Parcels have one dtype; an AllToAll has one.
std::vector<ir::ValueId> send(ir::Graph& made, const Journey& journey, const std::vector<Parcel>& parcels);

}  // namespace shoal::rewrite
