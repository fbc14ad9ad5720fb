// SPDX-License-Identifier: Apache-2.0
// What ranks get that call different things, or nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <thread>

#include "shoal/comm/call.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/pool.h"
#include "shoal/comm/test_ranks.h"

using namespace shoal;
using namespace shoal::comm;
using namespace std::chrono_literals;

using Ends = std::vector<std::string>;
using CallFunction = std::function<std::unique_ptr<Work>(Communicator&, void* memory)>;

// Both backends, three ranks: what all of them end with, once they have called this, and again for any later
// call.
static void ends_everywhere(const std::string& end, const CallFunction& call) {
  for (const bool shared : {false, true}) {
    CAPTURE(shared);
    const Ranks ranks = shared ? shm_ranks(3) : inproc(3);
    const auto once = [&](Communicator& rank) {
      std::array<std::byte, 4096> memory = {};
      call(rank, memory.data())->wait(20s);
      rank.barrier()->wait(20s);
    };
    CHECK(ends_of(ranks, once) == Ends(3, end));
    CHECK(ends_of(ranks, [](Communicator& rank) { rank.barrier()->wait(20s); }) == Ends(3, end));
  }
}

TEST_CASE("a message's call shows its tag where it has one") {
  CHECK(describe({.op = Op::Send, .count = 512, .peer = 1, .tag = {.microbatch = 3, .message = 2}}) ==
        "send(f32 x 512, to 1, micro-batch 3, message 2)");
  CHECK(describe({.op = Op::Receive, .count = 512, .peer = 0}) == "receive(f32 x 512, from 0)");
}

TEST_CASE("ranks that call different things all hear of both calls") {
  ends_everywhere(
      "invalid input: comm: call 0: rank 0 all_reduce(f32 x 10, sum), rank 1 all_reduce(f64 x 10, sum)",
      [](Communicator& rank, void* memory) {
        return rank.all_reduce({memory, 10, rank.rank() == 1 ? DType::Float64 : DType::Float32},
                               ReduceOp::Sum);
      });
  ends_everywhere(
      "invalid input: comm: call 0: rank 0 broadcast(u8 x 7, root 0), rank 2 broadcast(u8 x 8, root 0)",
      [](Communicator& rank, void* memory) {
        return rank.broadcast({memory, rank.rank() == 2 ? 8 : 7, DType::UInt8}, 0);
      });
  ends_everywhere("invalid input: comm: call 0: rank 0 barrier(), rank 1 reduce(bf16 x 1000, max, root 2)",
                  [](Communicator& rank, void* memory) {
                    const Buffer buffer = {memory, 1000, DType::BFloat16};
                    return rank.rank() == 1 ? rank.reduce(buffer, ReduceOp::Max, 2) : rank.barrier();
                  });
  ends_everywhere(
      "invalid input: comm: call 0: rank 1 all_to_all(2 to rank 2), rank 2 all_to_all(3 from rank 1)",
      [](Communicator& rank, void* memory) {
        const std::int64_t counts[] = {1, 1, rank.rank() == 1 ? 2 : 1};
        const std::int64_t taken[] = {1, rank.rank() == 2 ? 3 : 1, 1};
        return rank.all_to_all(
            {memory, counts[0] + counts[1] + counts[2], DType::Int32},
            {static_cast<std::byte*>(memory) + 64, taken[0] + taken[1] + taken[2], DType::Int32}, counts,
            taken);
      });
  ends_everywhere("invalid input: comm: call 0: rank 0 send(f32 x 3, to 2), rank 2 receive(f32 x 4, from 0)",
                  [](Communicator& rank, void* memory) {
                    if (rank.rank() == 0) return rank.send({memory, 3, DType::Float32}, 2);
                    return rank.rank() == 2 ? rank.receive({memory, 4, DType::Float32}, 0) : rank.barrier();
                  });
}

TEST_CASE("a message that was left out is told where the next one of its size comes, by the tags of both") {
  constexpr Tag kTags[] = {{0, 1}, {0, 2}, {1, 1}, {1, 2}};
  for (const std::int64_t count : {3, 100000})  // in one piece, and in several
    for (const std::size_t left_out : {1, 2}) {
      CAPTURE(count);
      std::vector<float> sent(static_cast<std::size_t>(count)), received(sent);
      const Call next = {.op = Op::Send, .count = count, .peer = 2, .tag = kTags[left_out + 1]};
      const Call wanted = {.op = Op::Receive, .count = count, .peer = 0, .tag = kTags[left_out]};
      ends_everywhere(
          "invalid input: " + mismatch(left_out, 0, next, 2, wanted), [&](Communicator& rank, void*) {
            std::unique_ptr<Work> last;
            for (std::size_t i = 0; i < 4; ++i) {
              if (rank.rank() == 1 || (rank.rank() == 0 && i == left_out)) continue;
              if (last) last->wait(20s);
              last = rank.rank() == 0 ? rank.send({sent.data(), count, DType::Float32}, 2, kTags[i])
                                      : rank.receive({received.data(), count, DType::Float32}, 0, kTags[i]);
            }
            return rank.rank() == 1 ? rank.barrier() : std::move(last);
          });
    }
}

TEST_CASE("calls that cannot be right are refused before anything is sent, and the group goes on") {
  for (const Ranks& ranks : {inproc(2), shm_ranks(2)})
    CHECK(
        ends_of(ranks, [](Communicator& rank) {
          std::array<float, 64> memory = {};
          const Buffer buffer = {memory.data(), 6, DType::Float32};
          const auto refused = [](const char* why, const auto& call) {
            CHECK_THROWS_WITH_AS(call(), why, Error);
          };
          refused("comm: broadcast: rank 2 is outside the group of 2 ranks",
                  [&] { rank.broadcast(buffer, 2); });
          refused("comm: send: rank -1 is outside the group of 2 ranks", [&] { rank.send(buffer, -1); });
          refused("comm: all_reduce of i64 to their average: wanted a floating type, or another operation",
                  [&] { rank.all_reduce({memory.data(), 2, DType::Int64}, ReduceOp::Average); });
          refused(
              "comm: broadcast of bool: wanted f64, f32, f16, bf16, i64, i32 or u8; move it as u8, or "
              "convert it",
              [&] { rank.broadcast({memory.data(), 2, DType::Bool}, 0); });
          refused("comm: all_gather: parts of 6 elements of 2 ranks: wanted 12 in the other buffer, got 11",
                  [&] { rank.all_gather(buffer, {memory.data(), 11, DType::Float32}); });
          refused("comm: all_gather from f32 to f16: wanted one element type",
                  [&] { rank.all_gather(buffer, {memory.data(), 12, DType::Float16}); });
          refused(
              "comm: all_to_all of 5 elements into 5 between 2 ranks: not equal parts; say how many go to "
              "and come "
              "from each rank",
              [&] {
                rank.all_to_all({memory.data(), 5, DType::Float32}, {memory.data() + 32, 5, DType::Float32});
              });
          refused("comm: broadcast of 3 elements at null",
                  [&] { rank.broadcast({nullptr, 3, DType::UInt8}, 0); });
          const int twice[] = {0, 0}, outside[] = {0, 1, 2};
          refused("comm: subgroup: rank 0 is named twice", [&] { rank.subgroup(twice); });
          refused("comm: subgroup: rank 2 is outside the group of 2 ranks", [&] { rank.subgroup(outside); });
          rank.barrier()->wait(20s);
        }) == Ends(2, "ok"));
}

TEST_CASE("a wait has an end, which says who has not come") {
  const Ranks ranks = shm_ranks(3);
  CHECK(ends_of(ranks, [](Communicator& rank) {
          float x = 0;
          if (rank.rank() == 0) rank.all_reduce({&x, 1, DType::Float32}, ReduceOp::Sum)->wait(10ms);
        })[0] == "timeout: comm: call 0, all_reduce(f32 x 1, sum): rank 0 waited 0.01 s for rank 1, 2");
  CHECK(ends_of(ranks, [](Communicator& rank) { rank.barrier(); })[2] ==
        "timeout: comm: call 0, all_reduce(f32 x 1, sum): rank 0 waited 0.01 s for rank 1, 2");

  const Ranks others = inproc(2);
  CHECK(ends_of(others, [](Communicator& rank) {
          if (rank.rank() == 0) rank.barrier()->wait(10ms);
        })[0] == "timeout: comm: call 0, barrier() of rank 0, was not done within 0.01 s");

  const Ranks threads = [] {
    Ranks all;
    for (auto& rank : inproc(2)) all.push_back(with_progress_thread(std::move(rank)));
    return all;
  }();
  CHECK(ends_of(threads, [](Communicator& rank) {
          if (rank.rank() == 0) rank.barrier()->wait(10ms);
        })[0] == "timeout: comm: call 0, barrier() was not done within 0.01 s");
}

TEST_CASE("a rank that leaves, or aborts, ends the wait of the others") {
  for (const bool shared : {false, true}) {
    CAPTURE(shared);
    Ranks ranks = shared ? shm_ranks(3) : inproc(3);
    ranks.pop_back();
    const Ends left = ends_of(ranks, [](Communicator& rank) { rank.barrier()->wait(20s); });
    for (const std::string& end : left) CHECK(end.find("rank 2 has left the group") != std::string::npos);

    const Ranks aborted = shared ? shm_ranks(3) : inproc(3);
    CHECK(ends_of(aborted, [](Communicator& rank) {
            if (rank.rank() == 1) return rank.abort("rank 1 is out of patience");
            rank.barrier()->wait(20s);
          }) == Ends{"peer lost: rank 1 is out of patience", "ok", "peer lost: rank 1 is out of patience"});

    const Ranks forgot = shared ? shm_ranks(2) : inproc(2);
    const Ends ends = ends_of(forgot, [](Communicator& rank) {
      if (rank.rank() == 1) return void(rank.receive({}, 0));
      rank.barrier()->wait(20s);
    });
    CHECK(ends[0].starts_with("peer lost: comm: call 0, receive(f32 x 0, from 0)"));
  }
}

TEST_CASE("a communicator may end as soon as its last call is done: others still have what it sent") {
  const Ranks ranks = shm_ranks(3);
  CHECK(ends_of(ranks, [](Communicator& rank) {
          const int all[] = {2, 0, 1};
          for (int round = 0; round < 200; ++round) {
            const auto group = rank.subgroup(all);
            std::vector<std::int32_t> mine(9000, round + group->rank() * 1000), theirs(27000);
            group->all_gather({mine.data(), 9000, DType::Int32}, {theirs.data(), 27000, DType::Int32})
                ->wait(20s);
            for (int r = 0; r < 3; ++r)
              for (int i = 0; i < 9000; ++i)
                SHOAL_CHECK(theirs[static_cast<std::size_t>(r * 9000 + i)] == round + r * 1000, Internal,
                            "round ", round, ": of rank ", r, " came ",
                            theirs[static_cast<std::size_t>(r * 9000 + i)]);
          }
        }) == Ends(3, "ok"));
}

// Ranks outnumber cores, so that one that looks for who has gone may be stopped while all others finish and go.
TEST_CASE("ranks that all leave after their last call are nobody's loss") {
  for (int round = 0; round < 50; ++round) {
    Ranks ranks = shm_ranks(8);
    std::mutex mutex;  // guards lost
    std::string lost;
    {
      std::vector<std::jthread> threads;
      for (auto& each : ranks)
        threads.emplace_back([&, rank = std::move(each)] {
          try {
            // The last one comes when the others have begun to look for who has gone.
            const auto late = std::chrono::steady_clock::now() + 8ms;
            while (rank->rank() == 7 && std::chrono::steady_clock::now() < late) std::this_thread::yield();
            rank->barrier()->wait(20s);
          } catch (const Error& error) {
            const std::lock_guard lock(mutex);
            lost = error.what();
          }
        });
    }
    REQUIRE(lost == "");
  }
}

TEST_CASE("when a call has been given up no other rank writes to its buffer any more") {
  constexpr std::int64_t kCount = 1 << 22;
  const Ranks ranks = shm_ranks(3);
  CHECK(ends_of(ranks, [](Communicator& rank) {
          const int all[] = {0, 1, 2};
          const auto memory = rank.allocate(kCount * 4);
          auto* elements = static_cast<std::int32_t*>(memory->data());
          for (int round = 0; round < 16; ++round) {
            const auto group = rank.subgroup(all);
            std::fill_n(elements, kCount, 1);
            const Buffer buffer = {elements, kCount, DType::Int32};
            if (rank.rank() == 0) {  // the others are somewhere in the middle of it
              std::unique_ptr<Work> work = group->all_reduce(buffer, ReduceOp::Sum);
              for (int i = 0; i < round % 4; ++i) std::this_thread::yield();
              work.reset();
              std::fill_n(elements, kCount, 7);
            } else {
              try {
                group->all_reduce(buffer, ReduceOp::Sum)->wait(20s);
              } catch (const Error&) {  // or it was through before
              }
              std::fill_n(elements, kCount, 8);
            }
            const std::int32_t first = elements[0];
            rank.barrier()->wait(20s);
            SHOAL_CHECK(std::count(elements, elements + kCount, first) == kCount, Internal, "round ", round,
                        ": ", std::count(elements, elements + kCount, first), " are ", first);
          }
        }) == Ends(3, "ok"));
}

TEST_CASE("a work that outlives its communicator says so") {
  Ranks ranks = shm_ranks(2);
  const std::unique_ptr<Work> work = ranks[0]->barrier();
  ranks.clear();
  CHECK(work->done());
  CHECK_THROWS_WITH_AS(work->wait(1s),
                       "comm: call 0, barrier(): its communicator ended before it was waited for", Error);
}

TEST_CASE(
    "memory that is not there is refused with the size wanted; what is there outlives its communicator") {
  Ranks ranks = shm_ranks(1);
  try {
    ranks[0]->allocate(std::int64_t{1} << 50);
    FAIL("there is no such memory");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Infeasible);
    CHECK_MESSAGE(std::string(error.what()).starts_with("shm: 1.0PiB of shared memory wanted, "),
                  error.what());
  }
  std::unique_ptr<Memory> memory = ranks[0]->allocate(5000);
  std::memset(memory->data(), 1, 5000);
  const void* where = memory->data();
  memory.reset();
  memory = ranks[0]->allocate(5000);
  CHECK(memory->data() == where);  // used again, and zeroed
  CHECK(std::memcmp(memory->data(), std::array<char, 5000>{}.data(), 5000) == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(memory->data()) % 64 == 0);
  ranks.clear();
  std::memset(memory->data(), 2, 5000);
  CHECK(memory->bytes() == 5000);
}
