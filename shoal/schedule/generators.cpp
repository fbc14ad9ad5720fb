// SPDX-License-Identifier: Apache-2.0
#include "shoal/schedule/generators.h"

#include <algorithm>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::schedule {

std::vector<int> looped_stages(int ranks, int stages_per_rank) {
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < ranks * stages_per_rank; ++stage) rank_of_stage.push_back(stage % ranks);
  return rank_of_stage;
}

std::vector<Part> in_order(int stage, int microbatches) {
  std::vector<Part> parts;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) parts.push_back({stage, microbatch});
  return parts;
}

std::vector<Action> by_turns(const std::vector<Part>& forwards, const std::vector<Part>& backwards,
                             int ahead) {
  std::vector<Action> row;
  const std::size_t first = std::min(static_cast<std::size_t>(ahead), forwards.size());
  for (std::size_t i = 0; i < forwards.size() + first; ++i) {
    if (i < forwards.size()) row.push_back({Kind::Forward, forwards[i].stage, forwards[i].microbatch});
    if (i < first) continue;
    row.push_back({Kind::Backward, backwards[i - first].stage, backwards[i - first].microbatch});
  }
  return row;
}

std::vector<Action> split_backward(const std::vector<Action>& row, int behind) {
  if (behind == 0) return row;
  std::vector<Action> split, due;
  for (Action action : row) {
    if (action.kind == Kind::Backward) {
      due.push_back({Kind::WeightGradient, action.stage, action.microbatch});
      action.kind = Kind::InputGradient;
    }
    split.push_back(action);
    if (action.kind == Kind::InputGradient && due.size() > static_cast<std::size_t>(behind)) {
      split.push_back(due.front());
      due.erase(due.begin());
    }
  }
  split.insert(split.end(), due.begin(), due.end());
  return split;
}

std::string note_of_fewer(std::string_view schedule, int microbatches, int enough) {
  if (microbatches >= enough) return "";
  return concat(schedule, ": fewer micro-batches than fill its ranks (", microbatches, " of ", enough,
                "): they wait for each other");
}

Timeline in_v(std::string_view schedule, std::vector<Action> (*row_of)(int rank, int ranks, int microbatches),
              int ranks, int microbatches, int enough) {
  Timeline timeline;
  for (int stage = 0; stage < 2 * ranks; ++stage)  // 0 1 2 2 1 0
    timeline.rank_of_stage.push_back(std::min(stage, 2 * ranks - 1 - stage));
  for (int rank = 0; rank < ranks; ++rank)
    timeline.actions.push_back(row_of(rank, ranks, std::max(microbatches, enough)));
  timeline = first_microbatches(std::move(timeline), microbatches);
  if (ranks > 1) timeline.note = note_of_fewer(schedule, microbatches, enough);
  return timeline;
}

void Row::input_gradient(int stage) {
  const int microbatch = next_of(stage).backward++;
  add(Kind::InputGradient, stage, microbatch);
  due_.push_back({Kind::WeightGradient, stage, microbatch});
}

void Row::weight_gradient() {
  if (!due_.empty()) weight_gradient(due_.front().stage);
}

void Row::weight_gradient(int stage) {
  const auto oldest = std::ranges::find(due_, stage, &Action::stage);
  if (oldest == due_.end()) return;
  actions_.push_back(*oldest);
  due_.erase(oldest);
}

void Row::pair(int forward_stage, int backward_stage) {
  forward(forward_stage);
  actions_.back().with_next = true;
  backward(backward_stage);
}

}  // namespace shoal::schedule
