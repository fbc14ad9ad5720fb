// SPDX-License-Identifier: Apache-2.0
#include "shoal/schedule/schedule.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/names.h"
#include "shoal/schedule/generators.h"

namespace shoal::schedule {

// Each after the one that it changes.
constexpr Schedule kSchedules[] = {
    {.name = "gpipe", .make = gpipe},
    {.name = "looped_bfs", .stages_per_rank = 2, .more_stages = true, .make = looped_bfs},
    {.name = "1f1b", .make = one_f_one_b},
    {.name = "eager_1f1b", .make = eager_one_f_one_b},
    {.name = "interleaved_1f1b", .stages_per_rank = 2, .more_stages = true, .make = interleaved},
    {.name = "zb_h1", .splits_backward = true, .make = zb_h1},
    {.name = "zb_h2", .splits_backward = true, .make = zb_h2},
    {.name = "zbv", .stages_per_rank = 2, .splits_backward = true, .make = zbv},
    {.name = "dualpipev", .stages_per_rank = 2, .splits_backward = true, .make = dual_pipe_v},
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

std::optional<Kind> parse_kind(std::string_view letter) { return parse_in(kLetters, letter); }

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

Timeline first_microbatches(Timeline timeline, int microbatches) {
  for (auto& row : timeline.actions) {
    const auto gone = [&](const Action& action) { return action.microbatch >= microbatches; };
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      if (gone(row[i + 1])) row[i].with_next = false;
    std::erase_if(row, gone);
  }
  return timeline;
}

bool splits_backward(const Timeline& timeline) {
  return std::ranges::any_of(timeline.actions, [](const auto& row) {
    return std::ranges::find(row, Kind::WeightGradient, &Action::kind) != row.end();
  });
}

std::vector<Held> most_held(const Timeline& timeline) {
  std::vector<Held> most;
  for (const auto& row : timeline.actions) {
    Held now;
    Held& largest = most.emplace_back();
    for (const Action& action : row) {
      now.backward += action.kind == Kind::Forward ? 1 : action.kind == Kind::WeightGradient ? 0 : -1;
      now.weights += action.kind == Kind::InputGradient ? 1 : action.kind == Kind::WeightGradient ? -1 : 0;
      if (now.backward + now.weights > largest.backward + largest.weights) largest = now;
    }
  }
  return most;
}

}  // namespace shoal::schedule
