// SPDX-License-Identifier: Apache-2.0
// Steps and bytes of each algorithm, as its file says them, against what was counted.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <thread>

#include "shoal/comm/call.h"
#include "shoal/comm/hosts.h"
#include "shoal/comm/pool.h"
#include "shoal/comm/ranks.h"
#include "shoal/comm/record/record.h"
#include "shoal/comm/test_ranks.h"
#include "shoal/comm/traffic.h"

using namespace shoal;
using namespace shoal::comm;
using namespace std::chrono_literals;

namespace {

enum class Way { Small, Direct, Staged };

struct Count {
  std::vector<std::int64_t> sent, received, steps;  // by rank
};

// One call of `part` float32 elements a part (of the whole, where there are no parts), root 0.
Count count(Op op, int size, std::int64_t part, Way way) {
  const Ranks ranks = shm_ranks(size);
  std::vector<Traffic> before(ranks.size()), after(ranks.size());
  const auto traffic = [](Communicator& rank) { return dynamic_cast<Counted&>(rank).traffic(); };
  CHECK(ends_of(ranks, [&](Communicator& rank) {
          const auto r = static_cast<std::size_t>(rank.rank());
          const bool in_parts = op == Op::Scatter || op == Op::ReduceScatter || op == Op::AllToAll;
          const bool out_parts = op == Op::Gather || op == Op::AllGather || op == Op::AllToAll;
          const std::int64_t in_count = in_parts ? part * size : part,
                             out_count = out_parts ? part * size : part;
          std::vector<float> plain_in(static_cast<std::size_t>(in_count)),
              plain_out(static_cast<std::size_t>(out_count));
          const auto shared_in = rank.allocate(in_count * 4), shared_out = rank.allocate(out_count * 4);
          const bool direct = way == Way::Direct;
          const Buffer in = {direct ? shared_in->data() : plain_in.data(), in_count, DType::Float32};
          const Buffer out = {direct ? shared_out->data() : plain_out.data(), out_count, DType::Float32};
          before[r] = traffic(rank);
          forward(rank, {.op = op, .in = in, .out = out})->wait(20s);
          after[r] = traffic(rank);
        }) == std::vector<std::string>(ranks.size(), "ok"));
  Count counted = {std::vector<std::int64_t>(ranks.size()), std::vector<std::int64_t>(ranks.size()), {}};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    counted.steps.push_back(after[r].num_steps - before[r].num_steps);
    for (std::size_t other = 0; other < ranks.size(); ++other) {
      const std::int64_t pulled = after[r].pulled[other] - before[r].pulled[other];
      const std::int64_t pushed = after[r].pushed[other] - before[r].pushed[other];
      counted.received[r] += pulled;
      counted.sent[other] += pulled;
      counted.sent[r] += pushed;
      counted.received[other] += pushed;
    }
  }
  return counted;
}

struct Row {
  Op op;
  // Received by root (rank 0) and by each other rank: of N ranks, parts of `bytes`.
  std::int64_t (*root)(std::int64_t ranks, std::int64_t bytes, Way way);
  std::int64_t (*other)(std::int64_t ranks, std::int64_t bytes, Way way);
};

std::int64_t none(std::int64_t, std::int64_t, Way) { return 0; }
std::int64_t one(std::int64_t, std::int64_t bytes, Way) { return bytes; }
std::int64_t all_others(std::int64_t ranks, std::int64_t bytes, Way) { return (ranks - 1) * bytes; }
std::int64_t least(std::int64_t ranks, std::int64_t bytes, Way way) {
  return way == Way::Small ? (ranks - 1) * bytes : 2 * bytes * (ranks - 1) / ranks;
}
std::int64_t share(std::int64_t ranks, std::int64_t bytes, Way way) {
  return way == Way::Small ? 0 : bytes * (ranks - 1) / ranks;
}

constexpr Row kRows[] = {
    {Op::AllGather, all_others, all_others},
    {Op::AllReduce, least, least},
    {Op::AllToAll, all_others, all_others},
    {Op::Broadcast, none, one},
    {Op::Gather, all_others, none},
    {Op::Reduce, least, share},
    {Op::ReduceScatter, all_others, all_others},
    {Op::Scatter, none, one},
};

}  // namespace

TEST_CASE("every algorithm takes the steps and moves the bytes that its file says") {
  for (const Row& row : kRows)
    for (const Way way : {Way::Small, Way::Direct, Way::Staged})
      for (const int size : {2, 3, 5}) {
        // Whole cache lines for each rank; where staged, one piece.
        const std::int64_t part = way == Way::Small ? 16 * size : 16 * size * 256;
        const std::int64_t bytes = part * 4, ranks = size;
        const bool by_parts = row.op == Op::Scatter || row.op == Op::ReduceScatter || row.op == Op::AllToAll;
        const std::int64_t pieces = (bytes * (by_parts ? ranks : 1) + 262143) / 262144;
        const std::int64_t steps = way == Way::Small ? 1 : way == Way::Direct ? 2 : 2 + pieces;
        INFO(name_of(row.op), " way ", static_cast<int>(way), " ranks ", size);
        const Count counted = count(row.op, size, part, way);
        CHECK(counted.steps == std::vector<std::int64_t>(static_cast<std::size_t>(size), steps));
        CHECK(counted.received[0] == row.root(ranks, bytes, way));
        for (std::size_t r = 1; r < counted.received.size(); ++r)
          CHECK(counted.received[r] == row.other(ranks, bytes, way));
        CHECK(std::accumulate(counted.sent.begin(), counted.sent.end(), std::int64_t{0}) ==
              std::accumulate(counted.received.begin(), counted.received.end(), std::int64_t{0}));
      }
}

TEST_CASE("a large all_reduce moves the least bytes that there can be: 2 S (N - 1) / N, on 2 to 9 ranks") {
  for (int size = 2; size <= 9; ++size)
    for (const Way way : {Way::Direct, Way::Staged}) {
      CAPTURE(size);
      const std::int64_t part = 16 * size * 400;
      const Count counted = count(Op::AllReduce, size, part, way);
      const std::vector<std::int64_t> wanted(static_cast<std::size_t>(size),
                                             2 * part * 4 * (size - 1) / size);
      CHECK(counted.received == wanted);
      CHECK(counted.sent == wanted);
    }
}

TEST_CASE("a rank alone moves nothing, and its result is its input") {
  const Ranks ranks = shm_ranks(1);
  float x = 3, y = 0;
  ranks[0]->all_reduce({&x, 1, DType::Float32}, ReduceOp::Average)->wait(0s);
  ranks[0]->all_gather({&x, 1, DType::Float32}, {&y, 1, DType::Float32})->wait(0s);
  CHECK(x == 3);
  CHECK(y == 3);
  CHECK(dynamic_cast<Counted&>(*ranks[0]).traffic().num_steps == 1);  // when it was made
}

TEST_CASE("a pool's calls go on while nobody waits for them, those of two communicators at once") {
  run_as_threads(shm_ranks(2), [](Communicator& rank) {
    const auto pool = make_pool(rank, 2);
    std::array<float, 2> x = {1, 2};
    std::vector<std::unique_ptr<Work>> works;
    // Each rank's first call waits for the other rank's second: in one queue neither would come to its
    // second.
    for (const int i : {rank.rank(), 1 - rank.rank()})
      works.push_back(pool[static_cast<std::size_t>(i)]->all_reduce(
          {&x[static_cast<std::size_t>(i)], 1, DType::Float32}, ReduceOp::Sum));
    while (!works[0]->done() || !works[1]->done()) std::this_thread::yield();
    for (const auto& work : works) work->wait(0s);
    CHECK(x == std::array<float, 2>{2, 4});
  });
}

TEST_CASE("record logs what a rank would say, and runs to its end") {
  std::vector<RecordedCall> log;
  const auto rank = record(1, 3, log);
  std::array<float, 6> x = {1, 2, 3, 4, 5, 6};
  std::array<float, 2> y = {7, 8};
  rank->all_gather({y.data(), 2, DType::Float32}, {x.data(), 6, DType::Float32})->wait(0s);
  CHECK(x == std::array<float, 6>{0, 0, 7, 8, 0, 0});
  rank->all_reduce({x.data(), 6, DType::Float32}, ReduceOp::Max)->wait(0s);
  CHECK(x == std::array<float, 6>{0, 0, 7, 8, 0, 0});
  rank->reduce_scatter({x.data(), 6, DType::Float32}, {y.data(), 2, DType::Float32}, ReduceOp::Sum)->wait(0s);
  CHECK(y == std::array<float, 2>{7, 8});
  rank->receive({y.data(), 2, DType::Float32}, 0)->wait(0s);
  CHECK(y == std::array<float, 2>{0, 0});
  const int pair[] = {2, 1};
  rank->subgroup(pair)->broadcast({y.data(), 2, DType::Float32}, 1)->wait(0s);
  std::string text;
  for (const RecordedCall& call : log) text += to_text(call) + "\n";
  CHECK(text ==
        "all_gather(f32 x 2) between 0 1 2, 2 in, 6 out\n"
        "all_reduce(f32 x 6, max) between 0 1 2, 6 in, 6 out\n"
        "reduce_scatter(f32 x 2, sum) between 0 1 2, 6 in, 2 out\n"
        "receive(f32 x 2, from 0) between 0 1 2, 0 in, 2 out\n"
        "broadcast(f32 x 2, root 1) between 2 1, 2 in, 2 out\n");
  rank->abort("enough");
  CHECK_THROWS_WITH_AS(rank->barrier(), "enough", Error);
}

TEST_CASE("ranks of one host find each other, by boot, namespace and user") {
  rendezvous::MemoryStore store;
  std::vector<std::jthread> threads;
  std::atomic<int> right = 0;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back(
        [&, r] { right += first_ranks_of_hosts(store, "hosts", r, 3, 20s) == std::vector{0, 0, 0}; });
  threads.clear();
  CHECK(right == 3);
  CHECK(first_ranks_of_hosts({"a", "b", "a", "c", "b"}) == std::vector{0, 1, 0, 3, 1});
  CHECK(host_identity().starts_with("boot "));
  CHECK_THROWS_WITH_AS(first_ranks_of_hosts(store, "half", 0, 2, 1ms),
                       doctest::Contains("\"half/1\" was not set"), Error);
}
