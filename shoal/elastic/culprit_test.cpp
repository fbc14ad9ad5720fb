// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/culprit.h"

#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/elastic/join.h"
#include "shoal/rendezvous/memory_store.h"

using namespace shoal;
using namespace shoal::elastic;
using namespace std::chrono_literals;

static RankReport exited(int rank, int code, std::int64_t when_ms) {
  return {.rank = rank, .ended = true, .code = code, .how = concat("exit code ", code), .when_ms = when_ms};
}

static RankReport about_others(int rank, ErrorKind kind, std::int64_t when_ms, std::uint64_t num_calls = 9) {
  RankReport report = exited(rank, 1, when_ms);
  report.kind = kind;
  report.num_calls = num_calls;
  report.current = "call 8, barrier()";
  return report;
}

TEST_CASE("blame goes to the rank that failed on its own account, not to those that saw it first") {
  RankReport killed = {.rank = 1,
                       .ended = true,
                       .by_signal = true,
                       .code = 9,
                       .how = "killed by signal 9 (Killed)",
                       .when_ms = 7};
  const std::vector<RankReport> ranks = {about_others(0, ErrorKind::PeerLost, 5), killed, exited(2, 3, 8)};
  const Culprit culprit = culprit_of(ranks);
  CHECK(culprit.ranks == std::vector{1});
  CHECK(culprit.why == "killed by signal 9 (Killed)");
}

TEST_CASE("blame goes to a stopped rank, to one that left early, or to those that are behind") {
  std::vector<RankReport> ranks = {
      about_others(0, ErrorKind::Timeout, 5), {.rank = 1, .num_calls = 9}, {.rank = 2, .num_calls = 7}};
  CHECK(culprit_of(ranks).ranks == std::vector{2});
  CHECK(culprit_of(ranks).why == "made 7 calls, others wait in call 8, barrier()");
  ranks[1].stopped = true;
  CHECK(culprit_of(ranks).ranks == std::vector{1});
  ranks = {about_others(0, ErrorKind::PeerLost, 5), exited(1, 0, 4)};
  CHECK(culprit_of(ranks).ranks == std::vector{1});
  CHECK(culprit_of(ranks).why == "exit code 0, while others waited for it");
}

TEST_CASE("blame goes to ranks that did not come, of those that waited for them none") {
  rendezvous::MemoryStore store;
  std::vector<RankReport> ranks = {about_others(0, ErrorKind::Timeout, 5, 0), {.rank = 1}, {.rank = 2}};
  ranks[0].error = error_of([&] { meet(store, {.place = {.rank = 0, .size = 3}}, 1ms); });
  CHECK(culprit_of(ranks).ranks == std::vector{1, 2});
  CHECK(culprit_of(ranks).why == "did not call join, and others waited for it");
}

static RankReport compared(int rank, const std::string& error,
                           std::vector<std::pair<std::string, std::string>> calls) {
  RankReport report = exited(rank, 1, rank);
  report.kind = ErrorKind::InvalidInput;
  report.error = error;
  report.calls = std::move(calls);
  return report;
}

TEST_CASE("where calls differ blame goes to the minority, and without one to all that differ") {
  const std::string error = "comm: call 8: rank 0 barrier(), rank 2 reduce(u8 x 1, sum, root 0), in h.3";
  std::vector<RankReport> ranks = {
      compared(0, error, {{"call 7", "barrier()"}, {"call 8", "barrier()"}}),
      // ahead, in another group, and with a message of the same number
      compared(1, error,
               {{"call 8", "barrier()"}, {"call 8", "send(u8 x 1, to 0)"}, {"call 8 of [1]", "gather()"}}),
      compared(2, error, {{"call 8", "reduce(u8 x 1, sum, root 0)"}}),
      compared(3, error, {{"call 7", "barrier()"}})};  // has not come so far
  CHECK(culprit_of(ranks).ranks == std::vector{2});
  CHECK(culprit_of(ranks).why == error);
  ranks.erase(ranks.begin());
  CHECK(culprit_of(ranks).ranks == std::vector{1, 2});
}

TEST_CASE("of a group's ranks that call different things the job's ranks are named") {
  const std::string error = "comm: call 0: rank 0 barrier(), rank 1 gather(u8 x 1, root 0)";
  const std::vector<RankReport> ranks = {
      compared(0, "", {{"call 0", "barrier()"}}),
      compared(1, error, {{"call 0", "barrier()"}, {"call 0 of [4,1,2]", "gather(u8 x 1, root 0)"}}),
      compared(2, error, {{"call 0 of [4,1,2]", "barrier()"}}),
      compared(4, error, {{"call 0 of [4,1,2]", "barrier()"}})};
  CHECK(culprit_of(std::span(ranks).subspan(1)).ranks == std::vector{1});
}

TEST_CASE("of parts and messages that do not fit both ranks are named") {
  const std::string parts = "comm: call 3: rank 1 all_to_all(2 to rank 2), rank 2 all_to_all(3 from rank 1)";
  std::vector<RankReport> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.push_back(compared(rank, parts, {{"call 3", "all_to_all(f32)"}}));
  CHECK(culprit_of(ranks).ranks == std::vector{1, 2});
  const std::string message =
      "comm: call 0: rank 0 send(u8 x 8, to 1, micro-batch 3, message 1), rank 1 receive(u8 x 8, from 0, "
      "micro-batch 2, message 1)";
  ranks = {compared(0, message, {{"call 0", "barrier()"}}),
           compared(2, message, {{"call 0 of [2,3]", "send(u8 x 8, to 1, micro-batch 3, message 1)"}}),
           compared(3, message, {{"call 0 of [2,3]", "receive(u8 x 8, from 0, micro-batch 2, message 1)"}})};
  CHECK(culprit_of(ranks).ranks == std::vector{2, 3});
}

TEST_CASE("the summary shows the culprit with its output, and each other rank in a line") {
  RankReport first = {.rank = 1,
                      .host = "b",
                      .process = 20,
                      .ended = true,
                      .by_signal = true,
                      .code = 9,
                      .how = "killed by signal 9 (Killed)",
                      .current = "call 17, barrier(), in h.3",
                      .tail = {"loss 3"}};
  RankReport other = {.rank = 0,
                      .host = "a",
                      .process = 10,
                      .how = "running",
                      .error = "comm: rank 1 has ended",
                      .last = "call 16, barrier()",
                      .calls = {{"call 16", "barrier()"}}};
  const std::vector<RankReport> ranks = {other, first};
  CHECK(summary_of(ranks, culprit_of(ranks)) ==
        R"(shoal run: rank 1 failed first: killed by signal 9 (Killed)
  rank 1 (host b, process 20): killed by signal 9 (Killed), in call 17, barrier(), in h.3
    the end of its output:
      loss 3
  rank 0 (host a, process 10): running, after call 16, barrier()
    last error: comm: rank 1 has ended
)");
  CHECK(reports_of(to_text(ranks)) == ranks);
  CHECK_THROWS_AS(reports_of("[{}]"), Error);
  CHECK_THROWS_AS(reports_of("no"), Error);
}

TEST_CASE("ranks are started again as often as was allowed, but not after wrong use") {
  const std::vector<RankReport> ranks = {exited(0, 1, 1)}, wrong = {exited(0, 2, 1)};
  const Culprit culprit = {.ranks = {0}};
  CHECK(decide_restart(0, 0, ranks, culprit).why.empty());
  CHECK(decide_restart(0, 2, ranks, culprit).again);
  CHECK(decide_restart(1, 2, ranks, culprit).why == "restart 2 of 2");
  CHECK_FALSE(decide_restart(2, 2, ranks, culprit).again);
  CHECK(decide_restart(2, 2, ranks, culprit).why == "not started again: 2 restarts were made");
  CHECK(decide_restart(0, 2, wrong, culprit).why ==
        "not started again: rank 0 ended with exit code 2, wrong use");
}
