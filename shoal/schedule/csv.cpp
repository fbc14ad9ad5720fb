// SPDX-License-Identifier: Apache-2.0
#include "shoal/schedule/csv.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::schedule {

constexpr std::string_view kPair = ")OVERLAP_F_B";

std::string to_csv(const Timeline& timeline) {
  std::string text;
  for (const auto& row : timeline.actions) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += ',';
      if (row[i].with_next && i + 1 < row.size()) {
        text += concat('(', to_text(row[i]), ';', to_text(row[i + 1]), kPair);
        ++i;
      } else {
        text += to_text(row[i]);
      }
    }
    text += '\n';
  }
  return text;
}

static std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

static std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != std::string_view::npos;
       text.remove_prefix(std::min(end + 1, text.size()))) {
    end = text.find(separator);
    parts.push_back(trimmed(text.substr(0, end)));
  }
  return parts;
}

static std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

static std::optional<Action> action_in(std::string_view text) {
  const std::size_t letter = text.find_first_of("FBIW");
  if (letter == std::string_view::npos) return std::nullopt;
  const auto stage = number_in(text.substr(0, letter)), microbatch = number_in(text.substr(letter + 1));
  const auto kind = parse_kind(text.substr(letter, 1));
  if (!stage || !microbatch || !kind) return std::nullopt;
  return Action{*kind, *stage, *microbatch};
}

// Of one cell, none or two where they go together; nullopt: it is none.
static std::optional<std::vector<Action>> actions_in(std::string_view cell) {
  if (cell.empty()) return std::vector<Action>{};
  std::vector<Action> actions;
  const bool is_pair = cell.starts_with('(') && cell.ends_with(kPair);
  if (is_pair) cell = cell.substr(1, cell.size() - 1 - kPair.size());
  for (const std::string_view part : parts_of(cell, ';')) {
    const auto action = action_in(part);
    if (!action) return std::nullopt;
    actions.push_back(*action);
  }
  if (actions.size() != (is_pair ? 2 : 1)) return std::nullopt;
  actions.front().with_next = is_pair;
  return actions;
}

// Where the actions of stages are; nullopt: nowhere, a stage that there must be.
static std::vector<std::optional<int>> places_of(const Timeline& timeline) {
  std::vector<std::optional<int>> places;
  for (std::size_t rank = 0; rank < timeline.actions.size(); ++rank)
    for (const Action& action : timeline.actions[rank]) {
      const auto stage = static_cast<std::size_t>(action.stage);
      if (stage >= places.size()) places.resize(stage + 1);
      if (!places[stage]) places[stage] = static_cast<int>(rank);
    }
  return places;
}

static std::string place_in(std::string_view file, int rank) {
  return concat("schedule ", file, ": row ", rank + 1, ", rank ", rank);
}

// How many micro-batches of a timeline that cannot run would: what runs does so with the last ones left out.
static std::string remedy_of(const Timeline& timeline) {
  int runs = 0, fails = timeline.num_microbatches();
  while (fails - runs > 1) {
    const int fewer = runs + (fails - runs) / 2;
    const Timeline first = first_microbatches(timeline, fewer);
    const bool is_whole = first.num_microbatches() == fewer && !fault_of(first);
    (is_whole ? runs : fails) = fewer;
  }
  if (runs == 0) return "";
  return concat("; of ", timeline.num_microbatches(), " micro-batches it can run the first ", runs);
}

Timeline with_microbatches(Timeline timeline, int microbatches, std::string_view file) {
  const int own = timeline.num_microbatches();
  SHOAL_CHECK(microbatches <= own, InvalidInput, "schedule ", file, ": it has no ", microbatches,
              " micro-batches; ", own, " is the nearest that it can run");
  Timeline first = first_microbatches(timeline, microbatches);
  if (microbatches == own || first.num_microbatches() < microbatches) return timeline;  // it lacks one
  first.note = concat("schedule ", file, ": of its ", own, " micro-batches the first ", microbatches);
  return first;
}

Timeline from_csv(std::string_view text, std::string_view file, int microbatches) {
  Timeline timeline;
  std::vector<std::string_view> rows = parts_of(text, '\n');
  while (!rows.empty() && rows.back().empty()) rows.pop_back();
  SHOAL_CHECK(!rows.empty(), InvalidInput, "schedule ", file, ": it has no row");
  const auto num_cells = static_cast<int>(std::ranges::count(text, ',') + std::ssize(rows));
  for (int rank = 0; rank < std::ssize(rows); ++rank) {
    auto& row = timeline.actions.emplace_back();
    for (int cell = 1; const std::string_view word : parts_of(rows[static_cast<std::size_t>(rank)], ',')) {
      const std::string where =
          concat(place_in(file, rank), ", cell ", cell++, ' ', in_quotes(word.substr(0, 40)));
      const auto actions = actions_in(word);
      SHOAL_CHECK(actions, InvalidInput, where, " is not STAGE, F, B, I or W, and MICROBATCH, as in 0F3",
                  "; sends and receives follow from the order");
      for (const Action& action : *actions)
        SHOAL_CHECK(std::max(action.stage, action.microbatch) < num_cells, InvalidInput, where,
                    " is beyond the stages and micro-batches that ", num_cells, " cells can have");
      row.insert(row.end(), actions->begin(), actions->end());
    }
    SHOAL_CHECK(!row.empty(), InvalidInput, place_in(file, rank), " has no action");
  }
  for (int stage = 0; const std::optional<int>& place : places_of(timeline)) {
    SHOAL_CHECK(place, InvalidInput, "schedule ", file, ": no row has an action of stage ", stage);
    timeline.rank_of_stage.push_back(*place);
    ++stage;
  }
  if (microbatches > 0) timeline = with_microbatches(std::move(timeline), microbatches, file);
  if (const auto fault = fault_of(timeline)) {
    std::string where = place_in(file, fault->rank);
    if (fault->index >= 0) {
      const auto& row = timeline.actions[static_cast<std::size_t>(fault->rank)];
      where += concat(", action ", fault->index + 1, " '",
                      to_text(row[static_cast<std::size_t>(fault->index)]), "':");
    }
    fail(ErrorKind::InvalidInput, where, " ", fault->what, remedy_of(timeline));
  }
  return timeline;
}

}  // namespace shoal::schedule
