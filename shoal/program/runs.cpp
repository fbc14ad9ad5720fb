// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/runs.h"

#include <optional>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::program {

using ir::Phase;
using schedule::Action;
using schedule::Kind;

static Phase phase_of(const Action& action) {
  return action.kind == Kind::Forward ? Phase::Forward : Phase::Backward;
}
static bool has_first_part(const Action& action) { return action.kind != Kind::WeightGradient; }
static bool has_weights(const Action& action) {
  return action.kind == Kind::Backward || action.kind == Kind::WeightGradient;
}

namespace {

class Ordering {
 public:
  Ordering(const schedule::Timeline& timeline, int rank, const std::vector<const Program*>& programs)
      : timeline_(timeline), rank_(rank), programs_(programs), received_(timeline.actions.size()) {}

  std::vector<Run> run() {
    if (const auto fault = schedule::fault_of_order(timeline_))
      fail(ErrorKind::InvalidInput, "schedule: ", to_text(*fault, timeline_));
    for (const Action& action : row_of(rank_)) {
      if (has_first_part(action)) run_first_part(action);
      if (!has_weights(action)) continue;
      add(find_weights(program_of(action), action.stage), action);
      add(segment_of(Phase::Update, action), action);
    }
    return std::move(runs_);
  }

 private:
  const Program& program_of(const Action& action) const {
    return *programs_.at(static_cast<std::size_t>(action.microbatch));
  }
  std::optional<std::size_t> segment_of(Phase phase, const Action& action) const {
    return find_segment(program_of(action), phase, action.stage);
  }
  void add(std::optional<std::size_t> segment, const Action& action) {
    if (segment) runs_.push_back({&program_of(action), *segment, action.microbatch});
  }

  // With all that it may read.
  void run_first_part(const Action& action) {
    const Phase phase = phase_of(action);
    for (int stage = 0; stage < timeline_.num_stages(); ++stage)
      if (phase == Phase::Forward ? stage < action.stage : stage > action.stage)
        receive_until({action.kind, stage, action.microbatch});
    add(segment_of(phase, action), action);
  }

  const std::vector<Action>& row_of(int rank) const {
    return timeline_.actions.at(static_cast<std::size_t>(rank));
  }

  // All that the stage's rank sends up to there, unless it has come before. Nothing is sent of weights.
  void receive_until(const Action& wanted) {
    const int from = timeline_.rank_of_stage[static_cast<std::size_t>(wanted.stage)];
    if (from == rank_ || !segment_of(phase_of(wanted), wanted)) return;
    const auto& row = row_of(from);
    std::size_t& at = received_[static_cast<std::size_t>(from)];
    const auto is_wanted = [&](const Action& action) {
      return has_first_part(action) && phase_of(action) == phase_of(wanted) && action.stage == wanted.stage &&
             action.microbatch == wanted.microbatch;
    };
    for (std::size_t i = 0; i < at; ++i)
      if (is_wanted(row[i])) return;
    for (bool is_there = false; !is_there; ++at) {
      SHOAL_CHECK(at < row.size(), Internal, "schedule: rank ", from, " never sends what stage ",
                  wanted.stage, " makes of micro-batch ", wanted.microbatch);
      is_there = is_wanted(row[at]);
      if (has_first_part(row[at])) add(segment_of(phase_of(row[at]), row[at]), row[at]);
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
