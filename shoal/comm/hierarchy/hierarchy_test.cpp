// SPDX-License-Identifier: Apache-2.0
// Ranks as threads, on hosts that are named here.
#include "shoal/comm/hierarchy/hierarchy.h"
#include "shoal/base/sanitized.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "shoal/comm/conformance.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/comm/test_ranks.h"

using namespace shoal;
using namespace shoal::comm;
using namespace std::chrono_literals;

// `first_ranks`: for each rank the first one of its host. Between hosts inproc, within one shm.
static Ranks ranks_on(const std::vector<int>& first_ranks) {
  const auto size = first_ranks.size();
  Ranks between = inproc(static_cast<int>(size)), ranks(size);
  std::vector<std::unique_ptr<Communicator>> here(size);
  for (std::size_t first = 0; first < size; ++first) {
    const auto num = std::ranges::count(first_ranks, static_cast<int>(first));
    if (num == 0) continue;
    Ranks of_host = shm_ranks(static_cast<int>(num));
    std::size_t next = 0;
    for (std::size_t rank = 0; rank < size; ++rank)
      if (first_ranks[rank] == static_cast<int>(first)) here[rank] = std::move(of_host[next++]);
  }
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < size; ++rank)
    threads.emplace_back(
        [&, rank] { ranks[rank] = hierarchy(std::move(between[rank]), std::move(here[rank]), first_ranks); });
  threads.clear();
  return ranks;
}

TEST_CASE("a hierarchy conforms: two and three hosts, alike and not, ranks in and out of the hosts' order") {
  const std::vector<std::vector<int>> cases = {
      {0, 1},    {0, 0, 2, 2},    {0, 1, 0, 1},       {0, 0, 0, 3, 3, 3}, {0, 0, 2, 3},
      {0, 1, 1}, {0, 1, 0, 0, 1}, {0, 0, 2, 2, 4, 4}, {0, 1, 2, 2, 1, 0}};
  for (const auto& first_ranks : cases) {
    if (kIsSanitized && first_ranks.size() > 4) continue;
    CAPTURE(first_ranks.size());
    CAPTURE(first_ranks.back());
    Conformance options{.exact_sums = true};
    if (kIsSanitized)
      options.dtypes = {DType::Float32, DType::BFloat16, DType::Int64};
    else if (first_ranks.size() > 4)
      options.dtypes = {DType::Float32, DType::BFloat16, DType::Int64, DType::UInt8};
    CHECK_NOTHROW(run_as_threads(ranks_on(first_ranks), [&](Communicator& rank) { conform(rank, options); }));
  }
}

TEST_CASE("buffers of several pieces go over hosts whole") {
  constexpr std::int64_t kCount = (std::int64_t{9} << 20) / 4 + 3;
  const Ranks ranks = ranks_on({0, 0, 2, 2});
  CHECK(ends_of(ranks, [&](Communicator& rank) {
          std::vector<float> numbers(kCount), given(kCount);
          const auto is = [&](const auto& value) {
            for (std::int64_t i = 0; i < kCount; ++i)
              if (numbers[static_cast<std::size_t>(i)] != value(i)) return false;
            return true;
          };
          const auto fill = [&] {
            for (std::int64_t i = 0; i < kCount; ++i)
              numbers[static_cast<std::size_t>(i)] = static_cast<float>(i % 1000 + rank.rank());
          };
          const Buffer buffer{numbers.data(), kCount, DType::Float32};
          fill();
          rank.all_reduce(buffer, ReduceOp::Sum)->wait(20s);
          SHOAL_CHECK(is([](std::int64_t i) { return static_cast<float>(4 * (i % 1000) + 6); }), Internal,
                      "sum");
          fill();
          rank.broadcast(buffer, 3)->wait(20s);
          SHOAL_CHECK(is([](std::int64_t i) { return static_cast<float>(i % 1000 + 3); }), Internal,
                      "broadcast");
          fill();
          rank.reduce(buffer, ReduceOp::Average, 1)->wait(20s);
          const float sum = rank.rank() == 1 ? 1.5F : static_cast<float>(rank.rank());
          SHOAL_CHECK(is([&](std::int64_t i) { return static_cast<float>(i % 1000) + sum; }), Internal,
                      "reduce");
        }) == std::vector<std::string>(4, "ok"));
}

TEST_CASE("10 kinds of calls at random, several under way, end with every bit right on hosts") {
  CHECK_NOTHROW(run_as_threads(ranks_on({0, 1, 0, 1, 0}), [](Communicator& rank) {
    for (std::uint64_t seed = 0; seed < (kIsSanitized ? 4 : 100); ++seed)
      random_calls(rank, seed, 6, {.exact_sums = true});
  }));
}

TEST_CASE("what ranks of hosts call differently is the error of all, with both calls as they made them") {
  const auto ends = [](const std::function<void(Communicator&)>& function) {
    return ends_of(ranks_on({0, 1, 0, 1}), function);
  };
  // On one host.
  CHECK(ends([&](Communicator& rank) {
          std::vector<float> own(8);
          rank.all_reduce({own.data(), rank.rank() == 2 ? 5 : 4, DType::Float32}, ReduceOp::Sum)->wait(20s);
        }) == std::vector<std::string>(4,
                                       "invalid input: comm: call 0: rank 0 all_reduce(f32 x 4, sum), rank 2 "
                                       "all_reduce(f32 x 5, sum)"));
  // Between hosts: of a call whose first part does not tell.
  CHECK(ends([&](Communicator& rank) {
          std::vector<float> own(8);
          rank.broadcast({own.data(), rank.rank() % 2 == 1 ? 5 : 4, DType::Float32}, 0)->wait(20s);
        }) ==
        std::vector<std::string>(4,
                                 "invalid input: comm: call 0: rank 0 broadcast(f32 x 4, root 0), rank 1 "
                                 "broadcast(f32 x 5, root 0)"));
  // Of one that does.
  for (const std::string& end : ends([&](Communicator& rank) {
         std::vector<float> own(8);
         rank.all_reduce({own.data(), rank.rank() % 2 == 1 ? 5 : 4, DType::Float32}, ReduceOp::Sum)
             ->wait(20s);
       })) {
    CAPTURE(end);
    CHECK(end.starts_with("invalid input: "));
    CHECK(end.find("all_reduce(f32 x 4, sum)") != std::string::npos);
    CHECK(end.find("all_reduce(f32 x 5, sum)") != std::string::npos);
  }
  // Where hosts do the same of both.
  for (const std::string& end : ends([&](Communicator& rank) {
         float one = 1;
         rank.all_reduce({&one, 1, DType::Float32}, rank.rank() % 2 == 1 ? ReduceOp::Average : ReduceOp::Sum)
             ->wait(20s);
       })) {
    CAPTURE(end);
    CHECK(end.starts_with("invalid input: "));
  }
  // Counts of one pair.
  CHECK(ends([&](Communicator& rank) {
          std::vector<float> in(8), out(8);
          std::vector<std::int64_t> sends(4, 1), receives(4, 1);
          if (rank.rank() == 1) sends = {2, 1, 0, 1};
          rank.all_to_all({in.data(), 4, DType::Float32}, {out.data(), 4, DType::Float32}, sends, receives)
              ->wait(20s);
        }) == std::vector<std::string>(4,
                                       "invalid input: comm: call 0: rank 1 all_to_all(2 to rank 0), rank 0 "
                                       "all_to_all(1 from rank 1)"));
}

TEST_CASE("a rank that leaves, and an abort, end the calls of all hosts") {
  const auto ends = ends_of(ranks_on({0, 0, 2, 2}), [](Communicator& rank) {
    if (rank.rank() == 3) return rank.abort("rank 3 is out of patience");
    std::vector<float> own(8);
    rank.all_reduce({own.data(), 8, DType::Float32}, ReduceOp::Sum)->wait(20s);
  });
  for (int rank = 0; rank < 3; ++rank)
    CHECK(ends[static_cast<std::size_t>(rank)] == "peer lost: rank 3 is out of patience");
}

TEST_CASE("a message that fails ends the calls of all hosts, and those that come later") {
  for (const int from : {1, 3}) {  // of the host, and of the other one
    CAPTURE(from);
    const Ranks ranks = ranks_on({0, 0, 2, 2});
    const auto ends = ends_of(ranks, [&](Communicator& rank) {
      float one = 0;
      if (rank.rank() == 0) {
        const auto message = rank.receive({&one, 1, DType::Float32}, from);
        CHECK_THROWS_AS(message->wait(50ms), Error);
      }
      rank.barrier()->wait(20s);
    });
    for (const std::string& end : ends) {
      CAPTURE(end);
      CHECK(end.starts_with("timeout: "));
    }
  }
}

TEST_CASE("who ends a call of several pieces is named on all hosts, whichever are under way") {
  int ended = 0;
  for (int round = 0; round < 20; ++round) {
    const auto ends = ends_of(ranks_on({0, 0, 2, 2}), [&](Communicator& rank) {
      constexpr std::int64_t kCount = (std::int64_t{20} << 20) / 4;
      std::vector<float> own(kCount);
      const auto work = rank.all_reduce({own.data(), kCount, DType::Float32}, ReduceOp::Sum);
      if (rank.rank() == 3) {
        for (int turns = 0; turns < 2000 * round; ++turns) std::this_thread::yield();
        rank.abort("rank 3 is out of patience");
      }
      work->wait(20s);
    });
    for (const std::string& end : ends) {
      CAPTURE(end);
      CHECK((end == "ok" || end == "peer lost: rank 3 is out of patience"));
      if (end != "ok") ++ended;
    }
  }
  CHECK(ended > 0);
}

TEST_CASE("subgroups of hosts are of the cheapest kind, and conform") {
  const Ranks ranks = ranks_on({0, 1, 0, 1, 0});
  CHECK(ends_of(ranks, [](Communicator& rank) {
          const auto reduced = [](Communicator& group) {
            std::int64_t one = 1;
            group.all_reduce({&one, 1, DType::Int64}, ReduceOp::Sum)->wait(20s);
            return one;
          };
          for (const std::vector<int>& members :
               {std::vector<int>{0, 2, 4}, {3, 1}, {1, 2}, {4, 1, 0, 3}, {2, 3}})
            if (std::ranges::find(members, rank.rank()) != members.end()) {
              const auto group = rank.subgroup(members);
              SHOAL_CHECK(reduced(*group) == std::ssize(members), Internal, "a subgroup of ", members.size());
            }
        }) == std::vector<std::string>(5, "ok"));
}
