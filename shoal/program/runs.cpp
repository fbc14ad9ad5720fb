// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/runs.h"

#include <map>
#include <optional>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::program {

using ir::Phase;
using schedule::Action;
using schedule::Kind;

static Phase phase_of(const Action& action) {
  SHOAL_CHECK(action.kind == Kind::Forward || action.kind == Kind::Backward, InvalidInput,
              "schedule: action ", to_text(action), " is a part of a backward, which is run whole");
  return action.kind == Kind::Forward ? Phase::Forward : Phase::Backward;
}

namespace {

class Ordering {
 public:
  Ordering(const schedule::Timeline& timeline, int rank, const std::vector<const Program*>& programs)
      : timeline_(timeline), rank_(rank), programs_(programs), received_(timeline.actions.size()) {}

  std::vector<Run> run() {
    std::map<std::pair<Phase, int>, int> next;  // micro-batch, by phase and stage
    for (const Action& action : row_of(rank_)) {
      const Phase phase = phase_of(action);
      int& wanted = next[{phase, action.stage}];
      SHOAL_CHECK(action.microbatch == wanted, InvalidInput, "schedule: rank ", rank_, " does ",
                  to_text(action), " before micro-batch ", wanted,
                  " of that stage, and a step adds them up in their order");
      ++wanted;
      for (int stage = 0; stage < timeline_.num_stages(); ++stage)
        if (phase == Phase::Forward ? stage < action.stage : stage > action.stage)
          receive_until(phase, stage, action.microbatch);
      add(phase, action.stage, action.microbatch);
      if (phase == Phase::Backward) add(Phase::Update, action.stage, action.microbatch);
    }
    return std::move(runs_);
  }

 private:
  const std::vector<Action>& row_of(int rank) const {
    return timeline_.actions.at(static_cast<std::size_t>(rank));
  }

  std::optional<std::size_t> segment_of(Phase phase, int stage, int microbatch) const {
    return find_segment(*programs_.at(static_cast<std::size_t>(microbatch)), phase, stage);
  }
  void add(Phase phase, int stage, int microbatch) {
    if (const auto segment = segment_of(phase, stage, microbatch))
      runs_.push_back({programs_[static_cast<std::size_t>(microbatch)], *segment, microbatch});
  }

  // All that the stage's rank sends up to there, unless it has come before.
  void receive_until(Phase phase, int stage, int microbatch) {
    const int from = timeline_.rank_of_stage[static_cast<std::size_t>(stage)];
    if (from == rank_ || !segment_of(phase, stage, microbatch)) return;
    const auto& row = row_of(from);
    std::size_t& at = received_[static_cast<std::size_t>(from)];
    const auto is_wanted = [&](const Action& action) {
      return phase_of(action) == phase && action.stage == stage && action.microbatch == microbatch;
    };
    for (std::size_t i = 0; i < at; ++i)
      if (is_wanted(row[i])) return;
    for (bool is_there = false; !is_there; ++at) {
      SHOAL_CHECK(at < row.size(), Internal, "schedule: rank ", from, " never sends what stage ", stage,
                  " makes of micro-batch ", microbatch);
      is_there = is_wanted(row[at]);
      add(phase_of(row[at]), row[at].stage, row[at].microbatch);
    }
  }

  const schedule::Timeline& timeline_;
  const int rank_;
  const std::vector<const Program*>& programs_;
  std::vector<std::size_t> received_;  // actions of each rank's row
  std::vector<Run> runs_;
};

}  // namespace

std::vector<Run> runs_of(const schedule::Timeline& timeline, int rank,
                         const std::vector<const Program*>& programs) {
  return Ordering(timeline, rank, programs).run();
}

}  // namespace shoal::program
