// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/left_out.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/comm/call_log.h"
#include "shoal/elastic/culprit.h"

using namespace shoal;
using namespace shoal::elastic;
using comm::Call;
using comm::Op;

namespace left_out_test {

// A pipeline's calls, played by ranks that send without waiting and wait for all else.
struct Job {
  int ranks = 2, microbatches = 4, steps = 4;
  bool forwards_first = false;
  std::string group;  // the ranks' one; of the job, where it is empty
};

struct Step {
  Op op = Op::Barrier;
  int peer = 0;
  comm::Tag tag;
  std::int64_t count = 1;
};

static std::vector<Step> program_of(const Job& job, int rank) {
  const auto tag = [](int microbatch, int message) {
    return comm::Tag{static_cast<std::uint16_t>(microbatch), static_cast<std::uint16_t>(message)};
  };
  std::vector<Step> program;
  const int last = job.ranks - 1;
  const auto forward = [&](int microbatch) {
    if (rank > 0) program.push_back({Op::Receive, rank - 1, tag(microbatch, 1), 8});
    if (rank < last) program.push_back({Op::Send, rank + 1, tag(microbatch, 1), 8});
  };
  const auto backward = [&](int microbatch) {
    if (rank == last) program.push_back({Op::Send, rank - 1, tag(microbatch, 1), 1});  // the loss
    if (rank == last - 1) program.push_back({Op::Receive, last, tag(microbatch, 1), 1});
    const auto message = [&](int from) { return static_cast<std::uint16_t>(from == last ? 2 : 1); };
    if (rank < last) program.push_back({Op::Receive, rank + 1, tag(microbatch, message(rank + 1)), 8});
    if (rank > 0) program.push_back({Op::Send, rank - 1, tag(microbatch, message(rank)), 8});
  };
  const int ahead = job.forwards_first ? job.microbatches : std::min(last - rank, job.microbatches);
  for (int microbatch = 0; microbatch < job.microbatches + ahead; ++microbatch) {
    if (microbatch < job.microbatches) forward(microbatch);
    if (microbatch >= ahead) backward(microbatch - ahead);
  }
  for (const std::int64_t count : {1, 1, 40}) program.push_back({.op = Op::AllReduce, .count = count});
  return program;
}

struct Player {
  std::vector<Step> program;
  std::size_t at = 0;  // over all steps
  std::vector<std::uint64_t> lanes;
  FlightLog log;
};

// The last calls of a rank that has made more.
static FlightLog last_of(FlightLog log, std::size_t num) {
  if (log.records.size() > num)
    log.records.erase(log.records.begin(), log.records.end() - static_cast<std::ptrdiff_t>(num));
  return log;
}

// What the launcher has of the ranks when one has left out that send: how they end, or none where they do not.
static std::vector<RankReport> reports_without(const Job& job, int leaver, std::size_t left_out_at,
                                               std::size_t num_kept = 1000) {
  std::vector<Player> players(static_cast<std::size_t>(job.ranks));
  std::map<std::pair<int, int>, std::vector<Call>> sent;
  std::string error;
  for (int rank = 0; rank < job.ranks; ++rank) {
    Player& player = players[static_cast<std::size_t>(rank)];
    for (int step = 0; step < job.steps; ++step)
      for (const Step& call : program_of(job, rank)) player.program.push_back(call);
    player.lanes.resize(1 + 2 * static_cast<std::size_t>(job.ranks));
  }
  for (bool moves = true; std::exchange(moves, false) && error.empty();)
    for (int rank = 0; rank < job.ranks; ++rank) {
      Player& player = players[static_cast<std::size_t>(rank)];
      while (player.at < player.program.size() && error.empty()) {
        const Step& step = player.program[player.at];
        if (rank == leaver && player.at == left_out_at) {
          ++player.at;
          continue;
        }
        Call call = {.op = step.op, .count = step.count, .peer = step.peer, .tag = step.tag};
        const bool is_new = player.log.records.empty() || player.log.records.back().state == CallState::Done;
        if (is_new)
          player.log.records.push_back(
              {.number = player.lanes[comm::CallLog::lane_of(call)]++, .call = call, .group = job.group});
        const std::uint64_t number = player.log.records.back().number;
        if (step.op == Op::Send) sent[{rank, step.peer}].push_back(call);
        if (step.op == Op::Receive) {
          const auto& sends = sent[{step.peer, rank}];
          if (sends.size() <= number) break;
          if (!is_one_message(sends[number], call)) {
            error = comm::mismatch(number, step.peer, sends[number], rank, call);
            break;
          }
        }
        if (step.op == Op::AllReduce &&
            std::ranges::any_of(players, [&](const Player& other) { return other.lanes[0] <= number; }))
          break;
        player.log.records.back().state = CallState::Done;
        ++player.at;
        moves = true;
      }
    }
  std::vector<RankReport> reports;
  for (int rank = 0; rank < job.ranks; ++rank) {
    FlightLog& log = players[static_cast<std::size_t>(rank)].log;
    log.num_calls = log.records.size();
    RankReport report = {.rank = rank, .how = "running", .num_calls = log.num_calls};
    if (players[static_cast<std::size_t>(rank)].at == players[static_cast<std::size_t>(rank)].program.size())
      report.how = "through";
    if (!log.records.empty() && log.records.back().state != CallState::Done)
      report.current = describe(log.records.back());
    for (const FlightRecord& record : log.records)
      report.calls.emplace_back(
          concat("call ", record.number, record.group.empty() ? "" : " of " + record.group),
          describe(record.call));
    report.left_out = left_out(last_of(log, num_kept), rank);
    report.waits = error.empty() && !report.current.empty();
    report.error = error;
    report.kind = error.empty() ? ErrorKind::Timeout : ErrorKind::InvalidInput;
    report.ended = true;
    report.code = 1;
    reports.push_back(report);
  }
  return reports;
}

TEST_CASE("whichever send a rank of a pipeline leaves out, in whichever step, the rank is named") {
  int named = 0, both = 0;
  for (Job job : {Job{}, Job{.forwards_first = true}, Job{.ranks = 3, .microbatches = 5},
                  Job{.ranks = 4, .forwards_first = true, .group = "[0,1,2,3]"}, Job{.microbatches = 2}})
    for (int rank = 0; rank < job.ranks; ++rank) {
      const auto program = program_of(job, rank);
      for (std::size_t send = 0; send < program.size() * static_cast<std::size_t>(job.steps); ++send) {
        const Step& call = program[send % program.size()];
        if (call.op != Op::Send) continue;
        const auto reports = reports_without(job, rank, send);
        const Culprit culprit = culprit_of(reports);
        CAPTURE(rank);
        CAPTURE(send);
        CAPTURE(summary_of(reports, culprit));
        CHECK(std::ranges::find(culprit.ranks, rank) != culprit.ranks.end());
        CHECK(reports_of(to_text(reports)) == reports);
        if (culprit.ranks.size() == 1) {
          ++named;
          CHECK(culprit.why.starts_with("left out send("));
        } else {
          ++both;
          CHECK(send < program.size());  // the first step: nothing to hold it against
        }
      }
    }
  CHECK(named == 300);
  CHECK(both == 32);
}

TEST_CASE("of two steps that are kept the last one tells what is missing in it") {
  const Job job;
  for (const int rank : {0, 1}) {
    const auto program = program_of(job, rank);
    for (std::size_t send = 2 * program.size(); send < 4 * program.size(); ++send)
      if (program[send % program.size()].op == Op::Send) {
        CAPTURE(send);
        CHECK(culprit_of(reports_without(job, rank, send, 2 * program.size())).ranks == std::vector{rank});
      }
  }
}

TEST_CASE("what an earlier step has and the last two have not is not missing") {
  const FlightRecord send = {.call = {.op = Op::Send, .count = 8, .peer = 1, .tag = {.message = 1}}};
  const FlightRecord get = {.call = {.op = Op::Receive, .count = 8, .peer = 1, .tag = {.message = 1}}}, meet;
  const FlightLog log = {.num_calls = 7, .records = {send, get, meet, get, meet, get, meet}};
  CHECK_FALSE(left_out(log, 0));
  const FlightLog repeated = {.num_calls = 7, .records = {send, meet, meet, meet, meet, meet, meet}};
  CHECK(left_out(repeated, 0).has_value());  // three in a step
  const FlightLog without = {.num_calls = 5, .records = {send, get, meet, get, meet}};
  CHECK(left_out(without, 0).value_or(LeftOut{}).receive ==
        "receive(f32 x 8, from 0, micro-batch 0, message 1)");
}

TEST_CASE(
    "ranks that wait for each other after a send that was left out stand still, and none that computes "
    "does") {
  const Job job = {.ranks = 3};
  std::size_t stood = 0;
  for (const int leaver : {0, 1, 2}) {
    const auto program = program_of(job, leaver);
    for (std::size_t send = program.size(); send < 3 * program.size(); ++send) {
      if (program[send % program.size()].op != Op::Send) continue;
      std::vector<RankReport> reports = reports_without(job, leaver, send);
      CHECK_FALSE(standstill_of(reports));  // they have ended
      for (RankReport& report : reports) report.ended = false;
      const auto standstill = standstill_of(reports);
      CHECK(standstill.has_value() == reports[0].error.empty());
      if (!standstill) continue;
      ++stood;
      CHECK(standstill->ranks == std::vector{leaver});
      CHECK(culprit_of(reports).why == standstill->why);
      const int asks = reports[static_cast<std::size_t>(leaver)].left_out.value_or(LeftOut{}).to;
      for (RankReport& report : reports) {
        if (report.rank != leaver && report.rank != asks) continue;
        report.waits = false;
        CHECK_FALSE(standstill_of(reports));
        report.waits = true;
      }
    }
  }
  CHECK(stood == 8);  // of each step the last send to each neighbour
}

}  // namespace left_out_test
