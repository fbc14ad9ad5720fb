// SPDX-License-Identifier: Apache-2.0
#include "shoal/schedule/schedule.h"

#include <algorithm>
#include <array>

#include "shoal/base/error.h"
#include "shoal/base/names.h"
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

// In the order in which they were thought of: each mends something of an earlier one.
constexpr Schedule kSchedules[] = {
    {.name = "gpipe", .make = gpipe},
    {.name = "1f1b", .make = one_f_one_b},
};

constexpr Names<Kind, 4> kLetters = {{
    {Kind::Forward, "F"},
    {Kind::Backward, "B"},
    {Kind::InputGradient, "I"},
    {Kind::WeightGradient, "W"},
}};

std::span<const Schedule> all() { return kSchedules; }

const Schedule& named(std::string_view name) {
  std::string names;
  for (const Schedule& schedule : kSchedules) {
    if (schedule.name == name) return schedule;
    names += concat(names.empty() ? "" : ", ", schedule.name);
  }
  fail(ErrorKind::InvalidInput, "there is no schedule '", name, "'; there are ", names);
}

Timeline Schedule::build(int ranks, int microbatches, int stages) const {
  SHOAL_CHECK(ranks >= 1 && microbatches >= 1, InvalidInput, name, ": ", ranks, " ranks and ", microbatches,
              " micro-batches; one of each is the least");
  if (stages == 0) stages = stages_per_rank;
  SHOAL_CHECK(stages == stages_per_rank || (more_stages && stages >= 1), InvalidInput, name, ": ", stages,
              " stages a rank; it has ", stages_per_rank, more_stages ? " or any number from 1" : "");
  return make(ranks, microbatches, stages);
}

int Timeline::num_microbatches() const {
  int count = 0;
  for (const auto& row : actions)
    for (const Action& action : row) count = std::max(count, action.microbatch + 1);
  return count;
}

std::vector<int> looped_stages(int ranks, int stages_per_rank) {
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < ranks * stages_per_rank; ++stage) rank_of_stage.push_back(stage % ranks);
  return rank_of_stage;
}

std::string to_text(const Action& action) {
  return concat(action.stage, name_in(kLetters, action.kind), action.microbatch);
}

std::string to_text(const Timeline& timeline) {
  std::string text;
  for (const auto& row : timeline.actions) {
    for (std::size_t i = 0; i < row.size(); ++i)
      text += concat(to_text(row[i]), i + 1 == row.size() ? "" : row[i].with_next ? "&" : " ");
    text += '\n';
  }
  if (!timeline.note.empty()) text += timeline.note + '\n';
  return text;
}

std::vector<Action> needs(const Action& action, int num_stages) {
  const auto [kind, stage, microbatch, with_next] = action;
  switch (kind) {
    case Kind::Forward:
      if (stage == 0) return {};
      return {{Kind::Forward, stage - 1, microbatch}};
    case Kind::Backward:
    case Kind::InputGradient:
      if (stage + 1 == num_stages) return {{Kind::Forward, stage, microbatch}};
      return {{Kind::Forward, stage, microbatch}, {Kind::InputGradient, stage + 1, microbatch}};
    case Kind::WeightGradient: return {{Kind::InputGradient, stage, microbatch}};
  }
  return {};
}

}  // namespace shoal::schedule
