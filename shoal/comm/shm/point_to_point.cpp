// SPDX-License-Identifier: Apache-2.0
// One message, from one rank to another. S bytes:
//
//   where                     received   how
//   up to 128 bytes           S          beside the call
//   sender's buffer shared    S          the receiver reads it
//   receiver's is             S          the sender writes it
//   neither                   S          through a ring of pieces in the sender's heap
//
// Both ends post what they call and compare it. The sender is through when the receiver is: a message that
// nobody receives is an error in time, not a loss. Words of an end are written by its rank alone:
//
//   sender    posted n | moved 1, 2, …           | finished n
//   receiver  posted n |     moved 1, 2, … finished n |
#include <algorithm>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/comm/shm/group.h"

namespace shoal::comm::shm {

static constexpr std::int64_t kPieceBytes = std::int64_t{1} << 17;
static constexpr std::uint32_t kPieces = 4;  // in the ring

static Until until(const std::atomic<std::uint32_t>& word, std::uint32_t target) {
  return {&word, 0, 1, target};
}

void Group::post(ChannelEnd& end, const Call& call, std::uint32_t number, int peer) {
  end.call = SharedCall::of(call);
  end.tag = call.tag;
  end.moved.store(0, std::memory_order_relaxed);
  end.posted.store(number, std::memory_order_seq_cst);
  wake(peer);
}

void Group::compare_message(int from, int to, std::uint32_t number) {
  const Call sent = control_.sender(from, to).message(), taken = control_.receiver(from, to).message();
  if (!is_one_message(sent, taken))
    fail(ErrorKind::InvalidInput, mismatch(number - 1, from, sent, to, taken));
}

Task Group::send(Request request, Call call, std::uint32_t number) {
  const int to = call.peer;
  ChannelEnd &mine = control_.sender(rank_, to), &theirs = control_.receiver(rank_, to);
  const auto* data = static_cast<const std::byte*>(request.in.data);
  const std::int64_t bytes = call.count * bytes_of(call.dtype);
  co_await until(mine.finished, number - 1);
  co_await until(theirs.finished, number - 1);

  const std::optional<Place> place = heap_->find(data, bytes);
  mine.flags = bytes <= kMessageInlineBytes ? kSmall : place ? kInShared : 0U;
  if (bytes > 0 && bytes <= kMessageInlineBytes) {
    std::memcpy(mine.inline_data, data, static_cast<std::size_t>(bytes));
  } else if (place) {
    mine.place = *place;
  } else if (bytes > 0) {
    std::unique_ptr<Memory>& ring = rings_[static_cast<std::size_t>(to)];
    if (!ring) ring = memory_from(heap_, kPieces * kPieceBytes);
    mine.staging = *heap_->find(ring->data(), ring->bytes());
  }
  post(mine, call, number, to);
  co_await until(theirs.posted, number);
  compare_message(rank_, to, number);

  if (mine.flags == 0 && (theirs.flags & kOutShared) != 0) {
    const Inside inside(*this);
    std::memcpy(at(theirs.place, bytes), data, static_cast<std::size_t>(bytes));
    traffic_.pushed[static_cast<std::size_t>(to)] += to == rank_ ? 0 : bytes;
    mine.moved.store(1, std::memory_order_seq_cst);
    wake(to);
  } else if (mine.flags == 0) {
    auto* ring = static_cast<std::byte*>(rings_[static_cast<std::size_t>(to)]->data());
    std::uint32_t piece = 0;
    for (std::int64_t first = 0; first < bytes; first += kPieceBytes, ++piece) {
      if (piece >= kPieces) co_await until(theirs.moved, piece - kPieces + 1);
      std::memcpy(ring + piece % kPieces * kPieceBytes, data + first,
                  static_cast<std::size_t>(std::min(kPieceBytes, bytes - first)));
      mine.moved.store(piece + 1, std::memory_order_seq_cst);
      wake(to);
    }
  }
  co_await until(theirs.finished, number);
  mine.finished.store(number, std::memory_order_seq_cst);
  wake(to);
}

Task Group::receive(Request request, Call call, std::uint32_t number) {
  const int from = call.peer;
  ChannelEnd &mine = control_.receiver(from, rank_), &theirs = control_.sender(from, rank_);
  auto* data = static_cast<std::byte*>(request.out.data);
  const std::int64_t bytes = call.count * bytes_of(call.dtype);
  co_await until(mine.finished, number - 1);
  co_await until(theirs.finished, number - 1);

  const std::optional<Place> place = heap_->find(data, bytes);
  mine.flags = place ? kOutShared : 0U;
  if (place) mine.place = *place;
  post(mine, call, number, from);
  co_await until(theirs.posted, number);
  compare_message(from, rank_, number);

  std::int64_t pulled = bytes;
  if ((theirs.flags & kSmall) != 0) {
    SHOAL_CHECK(bytes <= kMessageInlineBytes, Corrupt, "shm: rank ", from, " says that it wrote ", bytes,
                " bytes where there are ", kMessageInlineBytes);
    if (bytes > 0) std::memcpy(data, theirs.inline_data, static_cast<std::size_t>(bytes));
  } else if ((theirs.flags & kInShared) != 0) {
    const Inside inside(*this);
    std::memcpy(data, at(theirs.place, bytes), static_cast<std::size_t>(bytes));
  } else if (place) {
    co_await until(theirs.moved, 1);
    pulled = 0;
  } else {
    const std::byte* ring = at(theirs.staging, kPieces * kPieceBytes);
    std::uint32_t piece = 0;
    for (std::int64_t first = 0; first < bytes; first += kPieceBytes, ++piece) {
      co_await until(theirs.moved, piece + 1);
      std::memcpy(data + first, ring + piece % kPieces * kPieceBytes,
                  static_cast<std::size_t>(std::min(kPieceBytes, bytes - first)));
      mine.moved.store(piece + 1, std::memory_order_seq_cst);
      wake(from);
    }
  }
  traffic_.pulled[static_cast<std::size_t>(from)] += from == rank_ ? 0 : pulled;
  mine.finished.store(number, std::memory_order_seq_cst);
  wake(from);
}

}  // namespace shoal::comm::shm
