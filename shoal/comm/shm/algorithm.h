// SPDX-License-Identifier: Apache-2.0
// What a collective does with memory that all ranks see; when, and with whose memory, is decided in
// collective.cpp. One file an operation, which says its steps and bytes.
//
// A call goes one of three ways, the same on every rank:
//
//   small    what a rank contributes is put into its slot together with the call; when all have come each
//            takes what it wants. One step.
//   direct   the buffers are in shared memory: ranks read and write each other's. Two steps: all have come;
//            all are through.
//   staged   piece by piece through memory of each rank's own heap, of which there are two, so that the next
//            piece is filled while others still read this one. Two steps and one for each piece.
//
//     reductions    fill 0 | combine 0, fill 1 | take 0, combine 1, fill 2 | take 1, …
//     others        fill 0 | take 0, fill 1    | take 1, fill 2            | …
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shoal/comm/call.h"
#include "shoal/comm/traffic.h"

namespace shoal::comm::shm {

constexpr int kMaxRanks = 128;  // of a group

// Where a reduction's result goes, and whose memory that is.
struct Target {
  int rank = 0;
  std::byte* data = nullptr;
};

// One way of one call, as one rank sees it.
struct Turn {
  int rank = 0;
  int size = 0;
  Call call;
  const Request* request = nullptr;
  std::int64_t element = 0;  // bytes of one
  // The elements of each part that are moved now: all of them, or one piece.
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t stride = 0;  // bytes between parts in staging
  // By rank: where its contribution was put, and its buffers, null where they are not shared.
  std::span<std::byte* const> staging, in, out;
  // By rank: of all_to_all, what it sends to and takes from each rank.
  std::span<const std::int64_t* const> in_counts, out_counts;
  bool past_caches = false;  // what is copied is more than they hold
  Traffic* traffic = nullptr;

  bool is_root() const { return rank == call.peer; }
  // Copies to or from memory of `other`, and counts it.
  void pull(int other, const std::byte* from, std::byte* to, std::int64_t num_bytes) const;
  void push(int other, const std::byte* from, std::byte* to, std::int64_t num_bytes) const;
  void copy(const std::byte* from, std::byte* to, std::int64_t num_bytes) const;
  void keep(const std::byte* from, std::byte* to, std::int64_t num_bytes) const;  // this rank's own part
  // Reduces what stands at `offset` of each rank's memory, in the order of ranks.
  void reduce_all(std::span<std::byte* const> from, std::int64_t offset, std::span<const Target> to,
                  std::int64_t num_elements) const;

  int after(int steps) const { return (rank + steps) % size; }  // so that ranks do not all read from one
  const std::byte* my_in() const { return static_cast<const std::byte*>(request->in.data); }
  std::byte* my_out() const { return static_cast<std::byte*>(request->out.data); }
};

// A rank's share of elements that all ranks work on together: whole cache lines, so that no two ranks write
// to one.
struct Share {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
Share share_of(std::int64_t count, std::int64_t element, int rank, int size);

// Whose buffers are shared.
struct Shared {
  bool all_in = true, all_out = true, root_in = true, root_out = true;
};
enum class Direct { No, Pull, Push };

struct Algorithm {
  Op op;
  bool by_parts;   // whether a rank contributes a part for each rank, or one
  bool from_root;  // whether only root contributes
  Direct (*direct)(const Shared& shared);
  void (*move)(const Turn& turn, Direct direct);  // the whole call, directly
  void (*fill)(const Turn& turn);                 // this rank's contribution to its staging
  void (*combine)(const Turn& turn);     // null, or: this rank's share, from all stagings to stagings
  void (*take)(const Turn& turn);        // the result, from stagings
  void (*take_small)(const Turn& turn);  // the same without combine
};

const Algorithm& algorithm_of(Op op);

extern const Algorithm kAllGather, kAllReduce, kAllToAll, kBroadcast, kGather, kReduce, kReduceScatter,
    kScatter;

}  // namespace shoal::comm::shm
