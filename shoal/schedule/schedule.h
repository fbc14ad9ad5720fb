// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules as data: for each rank what it does, of which stage and micro-batch, in which order.
// A row a rank, in PyTorch's letters; here 1f1b on two ranks, stage s on rank s, three micro-batches:
//
//   0F0 0F1 0B0 0F2 0B1 0B2
//   1F0 1B0 1F1 1B1 1F2 1B2
//
// Nothing here computes, sends or waits. What crosses between stages follows from the order: see needs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::schedule {

// Backward is one action, B, or two: I gives the gradient of what came in, W those of the weights.
enum class Kind { Forward, Backward, InputGradient, WeightGradient };

struct Action {               // "0F1": forward of stage 0 and micro-batch 1
  Kind kind = Kind::Forward;  // what is done
  int stage = 0;              // from 0
  int microbatch = 0;         // from 0
  bool with_next = false;     // a forward and a backward of two micro-batches that may share the device
  friend bool operator==(const Action&, const Action&) = default;
};

// What all ranks do.
struct Timeline {
  std::vector<int> rank_of_stage;            // by stage
  std::vector<std::vector<Action>> actions;  // one row a rank
  std::string note = {};                     // what the schedule could not do at this size; "": nothing
  friend bool operator==(const Timeline&, const Timeline&) = default;

  // Of what it has.
  int num_ranks() const { return static_cast<int>(actions.size()); }
  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  int num_microbatches() const;  // that there are actions of
};

struct Schedule {
  std::string_view name;         // "1f1b", as plans have it
  int stages_per_rank = 1;       // by itself
  bool more_stages = false;      // whether a rank may also have other numbers of them
  bool splits_backward = false;  // whether it has I and W
  // What build() calls once sizes are right.
  Timeline (*make)(int ranks, int microbatches, int stages_per_rank) = nullptr;

  // For any sizes from one up; `stages`: of a rank, 0: as many as it has by itself. Throws InvalidInput for a
  // size below one, and where a rank cannot have so many stages.
  Timeline build(int ranks, int microbatches, int stages = 0) const;
};

std::span<const Schedule> all();  // that there are
// The one of that name. Throws InvalidInput that lists the names.
const Schedule& named(std::string_view name);

std::optional<Kind> parse_kind(std::string_view letter);  // "F", "B", "I", "W"; none: another
std::string to_text(const Action& action);                // "0F1"
std::string to_text(const Timeline& timeline);            // a row a rank, then the note where there is one

// What has to be done before it, of micro-batch and stages: the forward of the stage before; for a gradient,
// the forward of its own stage and I or B of the one after (as I); for W, I of its own stage.
std::vector<Action> needs(const Action& action, int num_stages);

// What is wrong with a timeline: each rank's actions can go in their order, each stage is done on its rank,
// and has each micro-batch once as F and once as B or as I and W.
struct Fault {
  int rank = 0;
  int index = -1;    // of the action in the rank's row; -1: of one that is not there
  std::string what;  // is wrong
};
std::optional<Fault> fault_of(const Timeline& timeline);
void verify(const Timeline& timeline);  // throws InvalidInput with rank, action and fault
// Where a stage has its micro-batches in another order than theirs, in which a step adds them up.
std::optional<Fault> fault_of_order(const Timeline& timeline);
std::string to_text(const Fault& fault, const Timeline& timeline);  // "rank 0, action 6 '0B2': …"

bool splits_backward(const Timeline& timeline);  // whether it has I and W

// The same order without the later micro-batches.
Timeline first_microbatches(Timeline timeline, int microbatches);

// How many stages' activations of a micro-batch a rank holds when it holds the most: those that backward
// needs, from F to B or I, and those that weight gradients need alone, from I to W.
struct Held {
  int backward = 0;  // stages and micro-batches that backward needs
  int weights = 0;   // and that weight gradients need alone
  friend bool operator==(const Held&, const Held&) = default;
};
std::vector<Held> most_held(const Timeline& timeline);  // by rank

}  // namespace shoal::schedule
