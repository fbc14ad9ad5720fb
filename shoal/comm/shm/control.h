// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group share: one segment, made by the group's first rank.
//
//   Header | RankState x N | Progress x N | CallSlot x N x 2 | ChannelEnd x N x N x 2
//
// A rank writes its own state, progress, slots and channel ends, and reads the others'. Each has a word that
// is written last, with everything before it then to be seen: the number of the call in a slot, say. A slot
// has two sides for odd and even calls: when a rank has seen all others at call n + 1, all have left call n,
// so that its side may be written for call n + 2.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shoal/base/error.h"
#include "shoal/comm/call.h"
#include "shoal/comm/shm/heap.h"

namespace shoal::comm::shm {

constexpr std::int64_t kInlineBytes = 32;      // in the line of the call itself
constexpr std::int64_t kPayloadBytes = 16384;  // in the slot
constexpr std::int64_t kMessageInlineBytes = 128;
constexpr std::uint32_t kFirstCall = 2;  // after the call in which the ranks meet; errors count from 0 there

// A Call as it is shared, but for a message's tag. Compared as a whole.
struct SharedCall {
  std::uint8_t op = 0, dtype = 0, reduce = 0, padding = 0;
  std::int32_t peer = 0;
  std::int64_t count = 0;
  friend bool operator==(const SharedCall&, const SharedCall&) = default;

  static SharedCall of(const Call& call) {
    return {.op = static_cast<std::uint8_t>(call.op),
            .dtype = static_cast<std::uint8_t>(call.dtype),
            .reduce = static_cast<std::uint8_t>(call.reduce),
            .peer = call.peer,
            .count = call.count};
  }
  // Throws Corrupt where a rank has written none.
  Call call() const {
    SHOAL_CHECK(op <= static_cast<std::uint8_t>(Op::Barrier) &&
                    dtype <= static_cast<std::uint8_t>(DType::Complex128) &&
                    reduce <= static_cast<std::uint8_t>(ReduceOp::Max),
                Corrupt, "shm: a rank has written what is no call");
    return {static_cast<Op>(op), static_cast<DType>(dtype), count, static_cast<ReduceOp>(reduce), peer};
  }
};

// How a group has ended, if it has.
struct Header {
  std::atomic<std::uint32_t> ended;  // 0 no, 1 somebody is about to say why, 2 yes
  std::int32_t kind;                 // an ErrorKind
  char why[1000];
};

struct alignas(64) RankState {
  std::atomic<std::uint32_t> sleeping;  // a futex: 1 while the rank sleeps or is about to
  std::atomic<std::uint32_t> left;      // its communicator has ended
  std::int32_t pid;
};

struct alignas(64) Progress {
  std::atomic<std::uint32_t> phase;   // how many phases of large calls this rank has done
  std::atomic<std::uint32_t> inside;  // 1 while it is in other ranks' memory
};

struct alignas(64) CallSlot {
  std::atomic<std::uint32_t> number;  // of the call that the rest is about
  std::uint32_t flags;                // kSmall, …
  SharedCall call;
  std::byte inline_data[kInlineBytes];
  Place in, out, staging;  // from here on: where the call is not small
  alignas(64) std::byte payload[kPayloadBytes];
};

// Flags.
constexpr std::uint32_t kSmall = 1, kInShared = 2, kOutShared = 4;

// One end of the channel from one rank to another, which moves one message at a time.
struct alignas(64) ChannelEnd {
  std::atomic<std::uint32_t> posted;    // number of the message that the rest is about
  std::atomic<std::uint32_t> finished;  // messages that this end is through with
  std::uint32_t flags;
  Tag tag;
  SharedCall call;
  Place place;  // of the buffer, if shared
  // From here on: where neither is it small nor the sender's buffer shared.
  std::atomic<std::uint32_t> moved;  // pieces that this end has put in or taken out
  Place staging;                     // of the sender's ring of pieces
  alignas(64) std::byte inline_data[kMessageInlineBytes];

  Call message() const {
    Call message = call.call();
    message.tag = tag;
    return message;
  }
};
static_assert(offsetof(ChannelEnd, moved) == 64, "what each message reads is one cache line");

// Where these are in a group of `size` ranks.
class Control {
 public:
  Control() = default;
  Control(std::byte* base, int size) : base_(base), size_(size) {}

  static std::int64_t bytes(int size) {
    const auto ranks = static_cast<std::int64_t>(size);
    return kHeader +
           ranks * static_cast<std::int64_t>(sizeof(RankState) + sizeof(Progress) + 2 * sizeof(CallSlot) +
                                             2 * static_cast<std::size_t>(ranks) * sizeof(ChannelEnd));
  }

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  RankState& state(int rank) const { return at<RankState>(0, rank); }
  Progress& progress(int rank) const {
    return at<Progress>(size_ * static_cast<std::int64_t>(sizeof(RankState)), rank);
  }
  CallSlot& slot(int rank, std::uint32_t number) const {
    return at<CallSlot>(before_slots(), 2 * rank + static_cast<int>(number % 2));
  }
  ChannelEnd& sender(int from, int to) const {
    return at<ChannelEnd>(before_channels(), 2 * (from * size_ + to));
  }
  ChannelEnd& receiver(int from, int to) const {
    return at<ChannelEnd>(before_channels(), 2 * (from * size_ + to) + 1);
  }

 private:
  static constexpr std::int64_t kHeader = 1024;
  static_assert(sizeof(Header) <= kHeader);

  std::int64_t before_slots() const {
    return size_ * static_cast<std::int64_t>(sizeof(RankState) + sizeof(Progress));
  }
  std::int64_t before_channels() const {
    return before_slots() + std::int64_t{2} * size_ * static_cast<std::int64_t>(sizeof(CallSlot));
  }
  template <class T>
  T& at(std::int64_t offset, int index) const {
    return *reinterpret_cast<T*>(base_ + kHeader + offset + index * static_cast<std::int64_t>(sizeof(T)));
  }

  std::byte* base_ = nullptr;
  int size_ = 0;
};

}  // namespace shoal::comm::shm
