// SPDX-License-Identifier: Apache-2.0
// Plays a timeline: each rank does its next action as soon as what that needs is done. A timeline that comes
// to its end in this way cannot deadlock, whatever takes how long.
#include <algorithm>
#include <array>
#include <optional>

#include "shoal/base/error.h"
#include "shoal/schedule/schedule.h"

namespace shoal::schedule {

namespace {

// What has been done of every stage and micro-batch. B does what I and W do.
class Done {
 public:
  Done(int num_stages, int num_microbatches)
      : num_microbatches_(static_cast<std::size_t>(num_microbatches)),
        done_(static_cast<std::size_t>(num_stages) * num_microbatches_) {}

  bool has(const Action& action) const {
    return std::ranges::all_of(parts_of(action.kind), [&](int part) { return at(action)[index(part)]; });
  }
  bool has_any(const Action& action) const {
    return std::ranges::any_of(parts_of(action.kind), [&](int part) { return at(action)[index(part)]; });
  }
  void add(const Action& action) {
    for (const int part : parts_of(action.kind)) at(action)[index(part)] = true;
  }

 private:
  using Parts = std::array<bool, 3>;  // forward, the gradient of what came in, those of the weights

  static std::vector<int> parts_of(Kind kind) {
    if (kind == Kind::Forward) return {0};
    if (kind == Kind::InputGradient) return {1};
    if (kind == Kind::WeightGradient) return {2};
    return {1, 2};
  }
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  Parts& at(const Action& action) {
    return done_[index(action.stage) * num_microbatches_ + index(action.microbatch)];
  }
  const Parts& at(const Action& action) const {
    return done_[index(action.stage) * num_microbatches_ + index(action.microbatch)];
  }

  std::size_t num_microbatches_;
  std::vector<Parts> done_;
};

}  // namespace

static void check_places(const Timeline& timeline) {
  for (int stage = 0; stage < timeline.num_stages(); ++stage) {
    const int rank = timeline.rank_of_stage[static_cast<std::size_t>(stage)];
    SHOAL_CHECK(rank >= 0 && rank < timeline.num_ranks(), InvalidInput, "schedule: stage ", stage,
                " is on rank ", rank, " of ", timeline.num_ranks());
  }
  Done seen(timeline.num_stages(), timeline.num_microbatches());
  for (int rank = 0; rank < timeline.num_ranks(); ++rank)
    for (const Action& action : timeline.actions[static_cast<std::size_t>(rank)]) {
      const std::string who = concat("schedule: rank ", rank, ", ", to_text(action), ": ");
      SHOAL_CHECK(action.stage >= 0 && action.stage < timeline.num_stages() && action.microbatch >= 0,
                  InvalidInput, who, "there are ", timeline.num_stages(), " stages");
      const int place = timeline.rank_of_stage[static_cast<std::size_t>(action.stage)];
      SHOAL_CHECK(place == rank, InvalidInput, who, "stage ", action.stage, " is on rank ", place);
      SHOAL_CHECK(!seen.has_any(action), InvalidInput, who, "done before");
      seen.add(action);
    }
  for (int stage = 0; stage < timeline.num_stages(); ++stage)
    for (int microbatch = 0; microbatch < timeline.num_microbatches(); ++microbatch)
      for (const Kind kind : {Kind::Forward, Kind::InputGradient, Kind::WeightGradient}) {
        const Action action = {kind, stage, microbatch};
        SHOAL_CHECK(seen.has(action), InvalidInput, "schedule: rank ",
                    timeline.rank_of_stage[static_cast<std::size_t>(stage)], " never does ", to_text(action));
      }
}

// Of a rank's next action, what is not done; nullopt: it can go.
static std::optional<Action> lacking(const Done& done, const Action& action, int num_stages) {
  for (const Action& need : needs(action, num_stages))
    if (!done.has(need)) return need;
  return std::nullopt;
}

void verify(const Timeline& timeline) {
  check_places(timeline);
  Done done(timeline.num_stages(), timeline.num_microbatches());
  std::vector<std::size_t> next(timeline.actions.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < next.size(); ++rank) {
      const auto& row = timeline.actions[rank];
      while (next[rank] < row.size() && !lacking(done, row[next[rank]], timeline.num_stages())) {
        done.add(row[next[rank]++]);
        moved = true;
      }
    }
  }
  std::string stuck;
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    if (next[rank] == timeline.actions[rank].size()) continue;
    const Action& action = timeline.actions[rank][next[rank]];
    stuck += concat(stuck.empty() ? "" : ", ", "rank ", rank, " at ", to_text(action), " for ",
                    to_text(*lacking(done, action, timeline.num_stages())));
  }
  SHOAL_CHECK(stuck.empty(), InvalidInput, "schedule: no rank can go on; each waits: ", stuck);
}

}  // namespace shoal::schedule
