// SPDX-License-Identifier: Apache-2.0
// One function a schedule, each in a file of its own; the table is in schedule.cpp. And what they share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/schedule/schedule.h"

namespace shoal::schedule {

Timeline gpipe(int ranks, int microbatches, int stages_per_rank);
Timeline one_f_one_b(int ranks, int microbatches, int stages_per_rank);
Timeline eager_one_f_one_b(int ranks, int microbatches, int stages_per_rank);
Timeline interleaved(int ranks, int microbatches, int stages_per_rank);
Timeline looped_bfs(int ranks, int microbatches, int stages_per_rank);
Timeline zb_h1(int ranks, int microbatches, int stages_per_rank);
Timeline zb_h2(int ranks, int microbatches, int stages_per_rank);
Timeline zbv(int ranks, int microbatches, int stages_per_rank);
Timeline dual_pipe_v(int ranks, int microbatches, int stages_per_rank);

// Stage s on rank s modulo ranks: 0 1 2 0 1 2.
std::vector<int> looped_stages(int ranks, int stages_per_rank);

// Two stages a rank in the shape of a V. Of fewer micro-batches than fill the ranks it is the timeline of
// enough, without those that are not there.
Timeline in_v(std::string_view schedule, std::vector<Action> (*row_of)(int rank, int ranks, int microbatches),
              int ranks, int microbatches, int enough);

// Where the forwards, or the backwards, of a rank are in the order of micro-batches and stages.
struct Part {
  int stage;
  int microbatch;
};
std::vector<Part> in_order(int stage, int microbatches);

// So many forwards first, then a forward and a backward by turns.
std::vector<Action> by_turns(const std::vector<Part>& forwards, const std::vector<Part>& backwards,
                             int ahead);

// Each B becomes an I, and a W that comes after the I of so many later ones, or at the end. With nothing
// between the two, B stays B.
std::vector<Action> split_backward(const std::vector<Action>& row, int behind);

// What a schedule says that is given fewer micro-batches than fill its ranks; "": it is not.
std::string note_of_fewer(std::string_view schedule, int microbatches, int enough);

// What a rank does next of each stage and kind, for rows that are written down in words.
class Row {
 public:
  explicit Row(int num_stages) : next_(static_cast<std::size_t>(num_stages)) {}

  void forward(int stage) { add(Kind::Forward, stage, next_of(stage).forward++); }
  void backward(int stage) { add(Kind::Backward, stage, next_of(stage).backward++); }
  void input_gradient(int stage);
  void weight_gradient();           // the oldest that is due; none: nothing
  void weight_gradient(int stage);  // likewise of a stage
  // A forward and a backward that may share the device.
  void pair(int forward_stage, int backward_stage);

  int forwards(int stage) const { return next_[static_cast<std::size_t>(stage)].forward; }
  bool weight_gradients_due() const { return !due_.empty(); }
  std::vector<Action> actions() const { return actions_; }

 private:
  struct Next {
    int forward = 0;
    int backward = 0;
  };
  Next& next_of(int stage) { return next_[static_cast<std::size_t>(stage)]; }
  void add(Kind kind, int stage, int microbatch) { actions_.push_back({kind, stage, microbatch}); }

  std::vector<Next> next_;   // micro-batch, by stage
  std::vector<Action> due_;  // weight gradients whose input gradient is done
  std::vector<Action> actions_;
};

}  // namespace shoal::schedule
