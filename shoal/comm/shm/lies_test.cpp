// SPDX-License-Identifier: Apache-2.0
// Rank 1 of two, whose rank 0 is written by hand into the memory that they share.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include "shoal/base/error_test.h"
#include "shoal/comm/shm/control.h"
#include "shoal/comm/shm/segment.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/rendezvous/memory_store.h"

using namespace shoal;
using namespace shoal::comm;
using namespace shoal::comm::shm;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t kElements = 100000;
constexpr std::int64_t kMemoryBytes = 1 << 20;

std::int64_t whole_pages(std::int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// What rank 0 has written up to its first call.
class Liar {
 public:
  Liar() { publish(1, {}); }

  void publish(std::uint32_t number, const Call& call, std::uint32_t flags = kSmall) const {
    CallSlot& slot = control.slot(0, number);
    slot.call = SharedCall::of(call);
    slot.flags = flags;
    slot.number.store(number);
  }

  // What rank 1 hears that is told of this memory.
  static std::string answer(const SegmentId& id, const std::function<void(Communicator&)>& act) {
    rendezvous::MemoryStore store;
    store.set("shm/lies/control", std::string_view(reinterpret_cast<const char*>(&id), sizeof id));
    return error_of([&] { act(*shm_communicator(store, 1, 2, {.job = "lies", .limit = 10s})); });
  }
  std::string answer(const std::function<void(Communicator&)>& act) const { return answer(shared.id(), act); }

 private:
  Mappings mappings_;

 public:
  const Segment shared{"lies", whole_pages(Control::bytes(2)), mappings_};
  const Segment memory{"memory of rank 0", kMemoryBytes, mappings_};
  const Control control{shared.data(), 2};
};

}  // namespace

TEST_CASE("memory that has not the size that its process says is not mapped") {
  const Liar liar;
  const auto nothing = [](Communicator&) {};
  SegmentId id = liar.shared.id();
  id.bytes *= 2;
  CHECK(Liar::answer(id, nothing) == concat("shm: process ", id.pid, " says that its descriptor ",
                                            id.descriptor, " is ", id.bytes,
                                            " bytes of shared memory, which it is not"));
  CHECK(Liar::answer(liar.memory.id(), nothing) == concat("shm: process ", id.pid, " made ", kMemoryBytes,
                                                          " bytes for a group of 2 ranks, which takes ",
                                                          liar.shared.id().bytes));
}

TEST_CASE("a place outside of its memory is not touched") {
  const auto reduce = [](Communicator& rank) {
    const auto memory = rank.allocate(4 * kElements);
    rank.all_reduce({memory->data(), kElements, DType::Float32}, ReduceOp::Sum)->wait(10s);
  };
  for (const std::int64_t offset : {std::int64_t{-64}, kMemoryBytes - 64, std::int64_t{1} << 62}) {
    CAPTURE(offset);
    const Liar liar;
    CallSlot& slot = liar.control.slot(0, 2);
    slot.in = slot.out = {liar.memory.id(), offset};
    liar.publish(2, {Op::AllReduce, DType::Float32, kElements}, kInShared | kOutShared);
    CHECK(liar.answer(reduce) == concat("shm: process ", getpid(), " says that 400000 bytes are at byte ",
                                        offset, " of shared memory that has 1048576"));
  }
}

TEST_CASE("a message is not read from where it does not fit, nor from outside of its memory") {
  const auto receive = [](Communicator& rank) {
    std::byte bytes[1000] = {};
    rank.receive({bytes, 1000, DType::UInt8}, 0)->wait(10s);
  };
  const Liar liar;
  ChannelEnd& end = liar.control.sender(0, 1);
  end.call = SharedCall::of({Op::Send, DType::UInt8, 1000, ReduceOp::Sum, 1});
  end.flags = kSmall;
  end.posted.store(1);
  CHECK(liar.answer(receive) == "shm: rank 0 says that it wrote 1000 bytes where there are 128");

  const Liar other;
  ChannelEnd& shared = other.control.sender(0, 1);
  shared.call = end.call;
  shared.flags = kInShared;
  shared.place = {other.memory.id(), kMemoryBytes - 999};
  shared.posted.store(1);
  CHECK(other.answer(receive) == concat("shm: process ", getpid(), " says that 1000 bytes are at byte ",
                                        kMemoryBytes - 999, " of shared memory that has 1048576"));
}

TEST_CASE("counts that are none, and more elements than there is room for, are refused") {
  const auto exchange = [](Communicator& rank) {
    const std::int64_t counts[] = {1, 1};
    std::int64_t in[2] = {}, out[2] = {};
    rank.all_to_all({in, 2, DType::Int64}, {out, 2, DType::Int64}, counts, counts)->wait(10s);
  };
  const auto answer = [&](std::int64_t to_itself) {
    const Liar liar;
    const std::int64_t counts[] = {to_itself, 1, to_itself, 1};
    std::memcpy(liar.control.slot(0, 2).payload, counts, sizeof counts);
    liar.publish(2, {Op::AllToAll, DType::Int64});
    return liar.answer(exchange);
  };
  CHECK(answer(-1) == "shm: rank 0 says that it has -1 elements for rank 0");
  CHECK(answer(4000) == "shm: rank 0 says that it wrote 32040 bytes where there are 16384");
}

TEST_CASE("what is no call is not named, and an end without an end is cut") {
  const Liar liar;
  liar.publish(2, {});
  liar.control.slot(0, 2).call.op = 200;
  CHECK(liar.answer([](Communicator& rank) { rank.barrier()->wait(10s); }) ==
        "shm: a rank has written what is no call");

  const Liar other;
  Header& header = other.control.header();
  std::memset(header.why, 'x', sizeof header.why);
  header.kind = 99;
  header.ended.store(2);
  CHECK(other.answer([](Communicator&) {}) == std::string(sizeof header.why, 'x'));
}
