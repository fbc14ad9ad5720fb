// SPDX-License-Identifier: Apache-2.0
// Plays a timeline: each rank does its next action as soon as what that needs is done. A timeline that comes
// to its end in this way cannot deadlock, whatever takes how long.
#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/schedule/schedule.h"

namespace shoal::schedule {

// A B is there as I and W.
static std::vector<Kind> parts_of(const Action& action) {
  if (action.kind != Kind::Backward) return {action.kind};
  return {Kind::InputGradient, Kind::WeightGradient};
}

namespace {

// Kinds, stages and micro-batches.
class Actions {
 public:
  bool has(const Action& action) const {
    return std::ranges::all_of(parts_of(action), [&](Kind part) { return has_part(action, part); });
  }
  bool has_any_of(const Action& action) const {
    return std::ranges::any_of(parts_of(action), [&](Kind part) { return has_part(action, part); });
  }
  void add(const Action& action) {
    for (const Kind part : parts_of(action)) keys_.emplace(action.stage, action.microbatch, part);
  }

 private:
  bool has_part(const Action& action, Kind part) const {
    return keys_.contains({action.stage, action.microbatch, part});
  }

  std::set<std::tuple<int, int, Kind>> keys_;
};

}  // namespace

static const std::vector<Action>& row_of(const Timeline& timeline, int rank) {
  return timeline.actions[static_cast<std::size_t>(rank)];
}

static int rank_of(const Timeline& timeline, int stage) {
  return timeline.rank_of_stage[static_cast<std::size_t>(stage)];
}

static std::optional<Fault> misplaced(const Timeline& timeline) {
  const int num_ranks = timeline.num_ranks(), num_stages = timeline.num_stages();
  for (int stage = 0; stage < num_stages; ++stage)
    if (const int rank = rank_of(timeline, stage); rank < 0 || rank >= num_ranks)
      return Fault{.rank = rank,
                   .what = concat("has stage ", stage, ", but there are ", num_ranks, " ranks")};
  for (int rank = 0; rank < num_ranks; ++rank)
    for (int i = 0; const Action& action : row_of(timeline, rank)) {
      if (action.stage < 0 || action.stage >= num_stages || action.microbatch < 0)
        return Fault{rank, i, concat("there are ", num_stages, " stages")};
      if (const int place = rank_of(timeline, action.stage); place != rank)
        return Fault{rank, i, concat("stage ", action.stage, " is on rank ", place)};
      ++i;
    }
  return std::nullopt;
}

static std::optional<Fault> not_once(const Timeline& timeline) {
  Actions seen;
  for (int rank = 0; rank < timeline.num_ranks(); ++rank)
    for (int i = 0; const Action& action : row_of(timeline, rank)) {
      if (seen.has_any_of(action)) return Fault{rank, i, "done before"};
      seen.add(action);
      ++i;
    }
  const int num_microbatches = timeline.num_microbatches();
  for (int stage = 0; stage < timeline.num_stages(); ++stage) {
    const int rank = rank_of(timeline, stage);
    for (int i = 0; i < std::max(num_microbatches, 1); ++i)
      for (const Kind kind : {Kind::Forward, Kind::InputGradient, Kind::WeightGradient})
        if (const Action action = {kind, stage, i}; !seen.has(action)) {
          const Action whole = {Kind::Backward, stage, i};
          const bool either = kind != Kind::Forward && !seen.has_any_of(whole);
          return Fault{.rank = rank, .what = concat("never does ", to_text(either ? whole : action))};
        }
  }
  return std::nullopt;
}

static std::optional<Fault> stuck(const Timeline& timeline) {
  Actions done;
  std::vector<int> next(timeline.actions.size(), 0);
  const auto action_of = [&](int rank) -> const Action* {
    const auto& row = row_of(timeline, rank);
    const auto i = static_cast<std::size_t>(next[static_cast<std::size_t>(rank)]);
    return i < row.size() ? &row[i] : nullptr;
  };
  // nullopt: it can go.
  const auto lacking = [&](const Action& action) -> std::optional<Action> {
    for (const Action& need : needs(action, timeline.num_stages()))
      if (!done.has(need)) return need;
    return std::nullopt;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < timeline.num_ranks(); ++rank)
      for (const Action* action = action_of(rank); action && !lacking(*action); action = action_of(rank)) {
        done.add(*action);
        ++next[static_cast<std::size_t>(rank)];
        moved = true;
      }
  }
  const auto text_of = [](const Action& need) {  // a B would do for an I
    const std::string also = to_text({Kind::Backward, need.stage, need.microbatch});
    return need.kind == Kind::InputGradient ? concat(to_text(need), " or ", also) : to_text(need);
  };
  std::optional<Fault> first;
  for (int rank = 0; rank < timeline.num_ranks(); ++rank)
    if (const Action* action = action_of(rank)) {
      const std::string need = text_of(*lacking(*action));
      if (!first)
        first = {rank, next[static_cast<std::size_t>(rank)], concat("waits for ", need, " for ever")};
      else
        first->what += concat("; so does rank ", rank, " at ", to_text(*action), " for ", need);
    }
  return first;
}

std::optional<Fault> fault_of(const Timeline& timeline) {
  if (auto fault = misplaced(timeline)) return fault;
  if (auto fault = not_once(timeline)) return fault;
  return stuck(timeline);
}

std::optional<Fault> fault_of_order(const Timeline& timeline) {
  std::map<std::pair<int, Kind>, int> next;  // micro-batch, by stage
  for (int rank = 0; rank < timeline.num_ranks(); ++rank)
    for (int i = 0; const Action& action : row_of(timeline, rank)) {
      for (const Kind kind : parts_of(action)) {
        int& wanted = next[{action.stage, kind}];
        if (action.microbatch != wanted)
          return Fault{rank, i,
                       concat("comes before micro-batch ", wanted,
                              " of that stage, and a step adds them up in their order")};
        ++wanted;
      }
      ++i;
    }
  return std::nullopt;
}

std::string to_text(const Fault& fault, const Timeline& timeline) {
  std::string where = concat("rank ", fault.rank);
  if (fault.index >= 0)
    where += concat(", action ", fault.index + 1, " '",
                    to_text(row_of(timeline, fault.rank)[static_cast<std::size_t>(fault.index)]), "':");
  return concat(where, ' ', fault.what);
}

void verify(const Timeline& timeline) {
  if (const auto fault = fault_of(timeline))
    fail(ErrorKind::InvalidInput, "schedule: ", to_text(*fault, timeline));
}

}  // namespace shoal::schedule
