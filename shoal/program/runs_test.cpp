// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/runs.h"

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

using namespace shoal;
using namespace shoal::program;
using ir::Phase;
using schedule::Kind;
using schedule::Timeline;

// Of a rank to which every stage of others sends: forward's to all that have a later stage, backward's to all that
// have an earlier one.
static Program program_of(const Timeline& timeline, int rank) {
  Program program;
  bool is_split = false;
  for (const auto& row : timeline.actions)
    for (const auto& action : row) is_split = is_split || action.kind == Kind::WeightGradient;
  const auto has = [&](auto wanted) {
    for (int stage = 0; stage < timeline.num_stages(); ++stage)
      if (timeline.rank_of_stage[static_cast<std::size_t>(stage)] == rank && wanted(stage)) return true;
    return false;
  };
  for (int stage = 0; stage < timeline.num_stages(); ++stage) {
    const bool is_own = timeline.rank_of_stage[static_cast<std::size_t>(stage)] == rank;
    if (is_own || has([&](int own) { return own > stage; }))
      program.segments.push_back({.phase = Phase::Forward, .stage = stage, .instructions = {}});
    if (is_own || has([&](int own) { return own < stage; }))
      program.segments.push_back({.phase = Phase::Backward, .stage = stage, .instructions = {}});
    if (is_own && is_split)
      program.segments.push_back(
          {.phase = Phase::Backward, .stage = stage, .is_weights = true, .instructions = {}});
    if (is_own) program.segments.push_back({.phase = Phase::Update, .stage = stage, .instructions = {}});
  }
  return program;
}

static std::vector<Run> runs_in(const Timeline& timeline, int rank, const Program& program) {
  const auto count = static_cast<std::size_t>(timeline.num_microbatches());
  return runs_of(timeline, rank, std::vector(count, &program));
}

static std::string text_of(const Timeline& timeline, int rank) {
  const Program program = program_of(timeline, rank);
  std::string text;
  for (const Run& run : runs_in(timeline, rank, program)) {
    const Segment& segment = program.segments[run.segment];
    const bool is_own = timeline.rank_of_stage[static_cast<std::size_t>(segment.stage)] == rank;
    text += concat(text.empty() ? "" : " ", is_own ? "" : "<", segment.stage,
                   segment.is_weights ? "w" : std::string(ir::name_of(segment.phase)).substr(0, 1),
                   run.microbatch);
  }
  return text;
}

TEST_CASE("what is received comes before the first that may read it, updates follow their stage's backward") {
  const auto interleaved = schedule::named("interleaved_1f1b").build(2, 2);
  CHECK(text_of(interleaved, 0) ==
        "0f0 0f1 <1f0 2f0 <1f1 2f1 <3b0 2b0 2u0 <3b1 2b1 2u1 <1b0 0b0 0u0 <1b1 0b1 0u1");
  CHECK(text_of(interleaved, 1) ==
        "<0f0 1f0 <0f1 1f1 <2f0 3f0 3b0 3u0 <2f1 3f1 3b1 3u1 <2b0 1b0 1u0 <2b1 1b1 1u1");
  CHECK(text_of(schedule::named("1f1b").build(2, 2), 1) == "<0f0 1f0 1b0 1u0 <0f1 1f1 1b1 1u1");
  CHECK(text_of(schedule::named("zb_h1").build(2, 2), 0) == "0f0 0f1 <1b0 0b0 0w0 0u0 <1b1 0b1 0w1 0u1");
  CHECK(text_of(schedule::named("zb_h1").build(2, 2), 1) == "<0f0 1f0 1b0 <0f1 1f1 1b1 1w0 1u0 1w1 1u1");
}

TEST_CASE("what another rank has sent before is received before") {
  // Rank 1 wants what stage 2 makes of micro-batch 0 last, and rank 0 has sent it first.
  Timeline timeline = {.rank_of_stage = {0, 1, 0, 1}, .actions = {}};
  timeline.actions = {{{Kind::Forward, 2, 0}, {Kind::Forward, 0, 0}},
                      {{Kind::Forward, 1, 0}, {Kind::Forward, 3, 0}}};
  CHECK(text_of(timeline, 1) == "<2f0 <0f0 1f0 3f0");
}

TEST_CASE(
    "every schedule's messages are received in the order in which they are sent, and none is waited for in "
    "vain") {
  for (const auto& schedule : schedule::all())
    for (int ranks = 1; ranks <= 4; ++ranks)
      for (int microbatches = 1; microbatches <= 9; ++microbatches)
        for (int stages = 1; stages <= (schedule.more_stages ? 3 : 1); ++stages) {
          const Timeline timeline = schedule.build(ranks, microbatches, schedule.more_stages ? stages : 0);
          CAPTURE(concat(schedule.name, ' ', ranks, ' ', microbatches, ' ', stages));
          std::vector<Program> programs;
          std::vector<std::vector<Run>> runs;
          for (int rank = 0; rank < ranks; ++rank) programs.push_back(program_of(timeline, rank));
          for (int rank = 0; rank < ranks; ++rank)
            runs.push_back(runs_in(timeline, rank, programs[static_cast<std::size_t>(rank)]));
          using Message = std::tuple<Phase, int, int>;
          std::map<std::pair<int, int>, std::vector<Message>> sent;  // by ranks; what is not yet received
          std::vector<std::size_t> next(runs.size());
          bool right = true;
          for (bool moves = true; moves && right;) {
            moves = false;
            for (int rank = 0; rank < ranks; ++rank) {
              const auto at = static_cast<std::size_t>(rank);
              for (; next[at] < runs[at].size(); ++next[at], moves = true) {
                const Run& run = runs[at][next[at]];
                const Segment& segment = programs[at].segments[run.segment];
                const Message message(segment.phase, segment.stage, run.microbatch);
                const int from = timeline.rank_of_stage[static_cast<std::size_t>(segment.stage)];
                if (from != rank) {
                  auto& messages = sent[{from, rank}];
                  if (messages.empty()) break;
                  right = right && messages.front() == message;
                  messages.erase(messages.begin());
                } else if (segment.phase != Phase::Update && !segment.is_weights) {
                  for (int to = 0; to < ranks; ++to)
                    if (to != rank &&
                        find_segment(programs[static_cast<std::size_t>(to)], segment.phase, segment.stage))
                      sent[{rank, to}].push_back(message);
                }
              }
            }
          }
          for (std::size_t rank = 0; rank < runs.size(); ++rank)
            right = right && next[rank] == runs[rank].size();
          for (const auto& [pair, messages] : sent) right = right && messages.empty();
          CHECK(right);
        }
}

TEST_CASE("a schedule that a trainer cannot run is told") {
  Timeline timeline = schedule::named("gpipe").build(1, 2);
  std::swap(timeline.actions[0][2], timeline.actions[0][3]);
  CHECK_THROWS_WITH_AS(text_of(timeline, 0),
                       "schedule: rank 0, action 3 '0B1': comes before micro-batch 0 of that stage, and a "
                       "step adds them up in their "
                       "order",
                       Error);
  timeline = schedule::named("zb_h1").build(1, 2);
  timeline.actions = {{{Kind::Forward, 0, 0},
                       {Kind::InputGradient, 0, 0},
                       {Kind::Forward, 0, 1},
                       {Kind::InputGradient, 0, 1},
                       {Kind::WeightGradient, 0, 1}}};
  CHECK_THROWS_WITH_AS(text_of(timeline, 0), doctest::Contains("'0W1': comes before micro-batch 0"), Error);
}
