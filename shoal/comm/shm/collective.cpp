// SPDX-License-Identifier: Apache-2.0
// The one course that all collectives take: publish the call, wait for everybody's, compare, then one of the
// three ways of algorithm.h.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "shoal/base/error.h"
#include "shoal/comm/shm/group.h"

namespace shoal::comm::shm {

// Of all_to_all the counts stand before the elements.
static std::int64_t counts_bytes(const Call& call, int size) {
  return call.op == Op::AllToAll ? std::int64_t{16} * size : 0;
}

// All counts of a call add up, in bytes, to what 64 bits hold.
static constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

// Copies of a call that moves more than this are not in a cache any more when somebody reads them.
static constexpr std::int64_t kPastCachesBytes = std::int64_t{8} << 20;

// What the slot has to hold of a rank that contributes.
static std::int64_t contribution(const Request& request, const Call& call, int size) {
  if (call.op == Op::Barrier) return 0;
  if (call.op == Op::AllToAll) return std::int64_t{16} * size + request.in.count * bytes_of(call.dtype);
  return call.count * bytes_of(call.dtype) * (algorithm_of(call.op).by_parts ? size : 1);
}

static std::byte* elements_in(CallSlot& slot, const Call& call, std::int64_t bytes, int size) {
  if (call.op != Op::AllToAll && bytes <= kInlineBytes) return slot.inline_data;
  return slot.payload + counts_bytes(call, size);
}

Task Group::collective(Request request, Call call, std::uint32_t number) {
  begin_turn(request, call, number);
  publish(request, call, number);
  ++traffic_.num_steps;
  co_await Until{&control_.slot(0, number).number, 2 * sizeof(CallSlot), size_, number};
  const bool small = compare(call, number);
  if (call.op == Op::Barrier) co_return;
  const Algorithm& algorithm = algorithm_of(call.op);
  if (small) {
    algorithm.take_small(turn_);
    co_return;
  }
  if (const Direct direct = find_buffers(algorithm, number); direct != Direct::No) {
    const std::int64_t parts = call.op == Op::Broadcast ? 1 : size_;
    turn_.past_caches = std::max(call.count * parts, request.in.count) * turn_.element >= kPastCachesBytes;
    {
      const Inside inside(*this);
      algorithm.move(turn_, direct);
    }
    co_await sync();
    co_return;
  }
  const std::int64_t pieces = staged_pieces(algorithm);
  const bool fills = !algorithm.from_root || turn_.is_root();
  for (std::int64_t piece = 0; piece <= pieces; ++piece) {
    const std::int64_t taken = algorithm.combine ? piece - 2 : piece - 1;
    {
      const Inside inside(*this);
      if (taken >= 0) {
        use_piece(taken);
        algorithm.take(turn_);
      }
      if (algorithm.combine && piece >= 1) {
        use_piece(piece - 1);
        algorithm.combine(turn_);
      }
      if (piece < pieces && fills) {
        use_piece(piece);
        algorithm.fill(turn_);
      }
    }
    co_await sync();  // the last one too: a rank may end when it is through, and its staging with it
  }
  if (algorithm.combine && pieces > 0) {
    use_piece(pieces - 1);
    algorithm.take(turn_);
  }
}

void Group::begin_turn(const Request& request, const Call& call, std::uint32_t number) {
  const std::int64_t bytes = contribution(request, call, size_);
  turn_ = {.rank = rank_,
           .size = size_,
           .call = call,
           .request = &request,
           .element = bytes_of(call.dtype),
           .count = call.count,
           .stride = call.op == Op::AllToAll ? 0 : call.count * bytes_of(call.dtype),
           .staging = staging_,
           .in = in_,
           .out = out_,
           .in_counts = in_counts_,
           .out_counts = out_counts_,
           .traffic = &traffic_};
  for (int r = 0; r < size_; ++r) {
    CallSlot& slot = control_.slot(r, number);
    staging_[static_cast<std::size_t>(r)] = elements_in(slot, call, bytes, size_);
    if (call.op != Op::AllToAll) continue;
    const auto* counts = reinterpret_cast<const std::int64_t*>(slot.payload);
    in_counts_[static_cast<std::size_t>(r)] = counts;
    out_counts_[static_cast<std::size_t>(r)] = counts + size_;
  }
  if (call.op == Op::AllToAll) turn_.count = std::max(request.in.count, request.out.count);
}

void Group::publish(const Request& request, const Call& call, std::uint32_t number) {
  CallSlot& slot = control_.slot(rank_, number);
  const bool small = contribution(request, call, size_) <= kPayloadBytes;
  slot.call = SharedCall::of(call);
  slot.flags = small ? kSmall : 0U;
  if (call.op == Op::AllToAll) {
    std::copy(request.in_counts.begin(), request.in_counts.end(),
              reinterpret_cast<std::int64_t*>(slot.payload));
    std::copy(request.out_counts.begin(), request.out_counts.end(),
              reinterpret_cast<std::int64_t*>(slot.payload) + size_);
  }
  if (!small || call.op == Op::AllToAll) publish_places(request, call, slot);
  if (small && call.op != Op::Barrier && (turn_.is_root() || !algorithm_of(call.op).from_root))
    algorithm_of(call.op).fill(turn_);
  slot.number.store(number, std::memory_order_seq_cst);
  wake_all();
}

void Group::publish_places(const Request& request, const Call& call, CallSlot& slot) {
  if (!own_staging_) own_staging_ = memory_from(heap_, 2 * kStagingBytes);
  const auto place_of = [&](const void* data, std::int64_t count, std::uint32_t flag, Place& place) {
    const auto found = heap_->find(data, count * bytes_of(call.dtype));
    place = found.value_or(Place{});
    if (found || count == 0) slot.flags |= flag;
  };
  const bool is_root = turn_.is_root();
  // What only root uses is nobody's hindrance elsewhere.
  const bool has_in = call.op != Op::Scatter || is_root, has_out = call.op != Op::Gather || is_root;
  place_of(request.in.data, has_in ? request.in.count : 0, kInShared, slot.in);
  place_of(request.out.data, has_out ? request.out.count : 0, kOutShared, slot.out);
  slot.staging = *heap_->find(own_staging_->data(), own_staging_->bytes());
}

bool Group::compare(const Call& call, std::uint32_t number) {
  const CallSlot& first = control_.slot(0, number);
  bool small = true;
  for (int r = 0; r < size_; ++r) {
    const CallSlot& slot = control_.slot(r, number);
    if (slot.call != first.call)
      fail(ErrorKind::InvalidInput, mismatch(number - kFirstCall, 0, first.call.call(), r, slot.call.call()));
    small = small && (slot.flags & kSmall) != 0;
  }
  if (call.op != Op::AllToAll) return small;
  for (int from = 0; from < size_; ++from)
    for (int to = 0; to < size_; ++to) {
      const std::int64_t sent = in_counts_[static_cast<std::size_t>(from)][to];
      const std::int64_t taken = out_counts_[static_cast<std::size_t>(to)][from];
      if (sent != taken)
        fail(ErrorKind::InvalidInput, uneven_pair(number - kFirstCall, from, sent, to, taken));
      SHOAL_CHECK(sent >= 0 && sent <= kMostElements, Corrupt, "shm: rank ", from, " says that it has ", sent,
                  " elements for rank ", to);
    }
  for (int r = 0; small && r < size_; ++r) {
    const std::int64_t bytes = counts_bytes(call, size_) + elements_of(call, r).in * turn_.element;
    SHOAL_CHECK(bytes <= kPayloadBytes, Corrupt, "shm: rank ", r, " says that it wrote ", bytes,
                " bytes where there are ", kPayloadBytes);
  }
  return small;
}

Group::Elements Group::elements_of(const Call& call, int rank) const {
  if (call.op == Op::AllToAll) {
    const auto sum = [&](const std::int64_t* counts) {
      return std::accumulate(counts, counts + size_, std::int64_t{0});
    };
    const auto r = static_cast<std::size_t>(rank);
    return {.in = sum(in_counts_[r]), .out = sum(out_counts_[r])};
  }
  const bool in_parts = call.op == Op::Scatter || call.op == Op::ReduceScatter;
  const bool out_parts = call.op == Op::Gather || call.op == Op::AllGather;
  return {.in = call.count * (in_parts ? size_ : 1), .out = call.count * (out_parts ? size_ : 1)};
}

Direct Group::find_buffers(const Algorithm& algorithm, std::uint32_t number) {
  Shared shared;
  for (int r = 0; r < size_; ++r) {
    const std::uint32_t flags = control_.slot(r, number).flags;
    const bool in = (flags & kInShared) != 0, out = (flags & kOutShared) != 0;
    shared.all_in = shared.all_in && in;
    shared.all_out = shared.all_out && out;
    if (r == turn_.call.peer) {
      shared.root_in = in;
      shared.root_out = out;
    }
  }
  const Direct direct = algorithm.direct(shared);
  for (int r = 0; r < size_; ++r) {
    const CallSlot& slot = control_.slot(r, number);
    const std::size_t i = static_cast<std::size_t>(r);
    in_[i] = out_[i] = nullptr;
    if (direct == Direct::No) {
      stages_[i] = at(slot.staging, 2 * kStagingBytes);
    } else {
      const auto [in, out] = elements_of(turn_.call, r);
      if (slot.in.segment.inode != 0 && (slot.flags & kInShared) != 0)
        in_[i] = at(slot.in, in * turn_.element);
      if (slot.out.segment.inode != 0 && (slot.flags & kOutShared) != 0)
        out_[i] = at(slot.out, out * turn_.element);
    }
  }
  return direct;
}

std::int64_t Group::staged_pieces(const Algorithm& algorithm) {
  num_elements_ = turn_.call.count;
  if (turn_.call.op == Op::AllToAll)
    for (const std::int64_t* counts : in_counts_)
      num_elements_ = std::max(num_elements_, *std::max_element(counts, counts + size_));
  const std::int64_t line = 64 / turn_.element;
  const std::int64_t parts = algorithm.by_parts ? size_ : 1;
  capacity_ = std::max(kStagingBytes / 64 / parts, std::int64_t{1}) * line;
  turn_.stride = capacity_ * turn_.element;
  return (num_elements_ + capacity_ - 1) / capacity_;
}

void Group::use_piece(std::int64_t piece) {
  turn_.first = piece * capacity_;
  turn_.count = std::min(capacity_, num_elements_ - turn_.first);
  for (std::size_t r = 0; r < staging_.size(); ++r) staging_[r] = stages_[r] + piece % 2 * kStagingBytes;
}

Until Group::sync() {
  ++traffic_.num_steps;
  std::atomic<std::uint32_t>& mine = control_.progress(rank_).phase;
  const std::uint32_t phase = mine.load(std::memory_order_relaxed) + 1;
  mine.store(phase, std::memory_order_seq_cst);
  wake_all();
  return {&control_.progress(0).phase, sizeof(Progress), size_, phase};
}

}  // namespace shoal::comm::shm
