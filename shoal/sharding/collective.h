// SPDX-License-Identifier: Apache-2.0
// What ranks of an axis say to each other in one call of the communicator, as a value; and the one place that
// knows how many bytes that moves: placement and redistribution ask it what a change would cost, the report
// what a program says, and a test holds both against what is counted at the communicator.
//
// A node of a rank's graph is a message or it is not; what is packed for one, and unpacked after it, is
// packed and unpacked by nodes of its own (rewrite/packing.h). Of S bytes that a rank puts in, n ranks:
//
//   shoal::all_reduce(self, axis, combine)            -> as self                2 S (n-1)/n
//   shoal::reduce_scatter(self, axis, combine)        -> part r on rank r         S (n-1)/n
//   shoal::all_gather(self, axis)                     -> all parts, by rank       S (n-1)
//   shoal::all_gather_into(wholes, self, axis)        -> the same, written over a source
//   shoal::all_to_all(self, axis, sends, receives)    -> what each has for me     S - what it keeps
//   shoal::send(self, axis, to)                       -> nothing                  S
//   shoal::receive(axis, from, device)                -> what it sends            0
//
// A send does not wait for its receive: it sends a copy, which is kept until it has arrived.
//
// The first two of parts that are not alike are all_to_alls too, which send what there is and no padding.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/dtype.h"
#include "shoal/ir/graph.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::sharding {

enum class Collective { AllReduce, ReduceScatter, AllGather, AllToAll, Send, Receive };
std::string_view name_of(Collective kind);               // "all_reduce"
Collective collective_from_text(std::string_view name);  // throws Internal: people do not write it

// Of a rank among `ranks`: what it sends to the others. `in`: what it puts in; `own`: how much of that is for
// itself, which only an AllToAll asks. In bytes or elements, as one has them.
template <class Number>
constexpr Number sent(Collective kind, Number in, Number own, int ranks) {
  const auto n = static_cast<Number>(ranks);
  switch (kind) {
    case Collective::AllReduce: return 2 * in * (n - 1) / n;
    case Collective::ReduceScatter: return in * (n - 1) / n;
    case Collective::AllGather: return in * (n - 1);
    case Collective::AllToAll: return in - own;
    case Collective::Send: return in;
    case Collective::Receive: return 0;
  }
  return in;
}

struct Message {
  Collective kind = Collective::AllReduce;
  std::string axis;
  int ranks = 1;
  int index = 0;  // this rank's along the axis
  int peer = -1;  // likewise, of a Send or Receive: the other one
  DType dtype = DType::Float32;
  std::optional<Combine> combine;
  std::int64_t in = 0, out = 0;               // elements of this rank's buffers
  std::vector<std::int64_t> sends, receives;  // of an AllToAll: elements for and from each rank
  friend bool operator==(const Message&, const Message&) = default;

  std::int64_t bytes() const;  // that this rank sends
};

// "all_reduce tensor f32 sum 64 -> 64", "all_to_all shard f32 12 -> 9 (6 6, 6 3)", "send stage f32 64 to 1"
std::string to_text(const Message& message);

bool is_collective(std::string_view op);

// What a node of this rank's graph, or an instruction of its program, says to others; nothing where it is no
// collective, or moves nothing. `type_of`: of what it reads and makes.
using TypeOf = std::function<const ir::TensorType&(ir::ValueId)>;
std::optional<Message> message_of(const ir::Node& node, const TypeOf& type_of, const Mesh& mesh, int rank);

// What rank `index` of `count` holds of a dim of `whole` elements that `shard` cuts: box_of without a mesh.
std::vector<Range> part_ranges(const Shard& shard, std::int64_t whole, int index, int count);
std::int64_t part_size(const Shard& shard, std::int64_t whole, int index, int count);

// The weights of several, one after the other, as instructions carry them: as many for each, zeros where parts
// are alike. Empty where they are in all of them.
std::vector<std::int64_t> weights_of(const std::vector<Shard>& shards);
// Those of number `index` of `num_shards`.
std::vector<std::int64_t> weights_at(const std::vector<std::int64_t>& all, std::size_t index,
                                     std::size_t num_shards);

}  // namespace shoal::sharding
