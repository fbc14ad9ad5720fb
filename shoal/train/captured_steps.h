// SPDX-License-Identifier: Apache-2.0
// The steps of a model that were captured, each for one structure of the batch and the model, and found again
// by it; and the spot checks that hold them against what the model does now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "shoal/capture/capture.h"
#include "shoal/ir/graph.h"
#include "shoal/ir/scopes.h"
#include "shoal/observe/trace.h"
#include "shoal/train/distribution.h"
#include "shoal/train/model_tensors.h"
#include "shoal/train/model_view.h"
#include "shoal/train/numbers.h"
#include "shoal/train/runnable.h"
#include "shoal/train/shared_batch.h"
#include "shoal/train/spot_checks.h"

namespace shoal::train {

// What a graph is run for: a whole step, one of the micro-batches of a step, gradients for somebody else's
// update, or a look at the loss. All but the last are made of one capture.
enum class Use { Step, Microbatch, Backward, Evaluation };
constexpr const char* call_of(Use use) {  // as users know it
  return use == Use::Step         ? "step()"
         : use == Use::Microbatch ? "step_over()"
         : use == Use::Backward   ? "backward()"
                                  : "evaluate()";
}

struct CapturedStep {
  std::string key;
  std::uint64_t structure = 0;  // see CapturedSteps::runs_
  capture::Guards guards;
  ir::Graph graph;  // as the model was captured
  ir::Scopes scopes;
  std::vector<at::Tensor> constants;
  std::vector<std::string> inputs;                     // names of the batch's tensors
  std::string tag;                                     // ModelView::tag
  std::map<Use, std::unique_ptr<Runnable>> runnables;  // made when they are first used
  std::int64_t last_step = -1;                         // the last one that was counted
  Numbers numbers = {};                     // that it is right for: those of the model that keep changing
  std::unique_ptr<Followed> followed = {};  // null: for these alone
};

class CapturedSteps {
 public:
  struct Settings {
    double spot_check_share = 0;
    std::int64_t graph_bytes = 0;
    std::function<std::string()> depends_on;
    observe::Trace* trace = nullptr;
    std::function<void(const Runnable&)> forgets;  // told before one goes
  };

  // Borrows both.
  CapturedSteps(ModelView& view, const ModelTensors& model, Settings settings);
  void set_ranks(Distribution* ranks) { ranks_ = ranks; }

  // Captures what is not there.
  CapturedStep& find(const SharedBatch& batch, Use use);
  // After a spot check where one is due. A step has one at most: further micro-batches of step `number` have
  // none.
  CapturedStep& checked(const SharedBatch& batch, Use use, std::int64_t number);
  bool is_time_for_check() const { return spot_checks_.is_time(); }
  // Of what a graph depends on besides the batch, what all ranks have to have alike, as text.
  std::string shared_structure() const;

  void forget();
  // What the steps run is made anew when it is used next.
  void forget_runnables();
  // How many were captured that differ in sizes alone from one before, and how many had to go for want of
  // room.
  std::int64_t num_alike() const { return num_alike_; }
  std::int64_t num_forgotten() const { return num_forgotten_; }
  std::list<CapturedStep>& all() { return steps_; }
  const std::list<CapturedStep>& all() const { return steps_; }

 private:
  std::string structure() const;
  struct Key {
    std::string all;
    std::uint64_t without_sizes;
  };
  Key key_of(const SharedBatch& batch, Use use) const;
  Batch whole(const SharedBatch& batch) const;
  capture::Request request_of(const Batch& batch, Use use);
  void forget_runnables(CapturedStep& step);
  void forget(CapturedStep& step);
  CapturedStep captured(const Batch& batch, Use use, Key key);
  void forget_until_it_fits();
  void follow_numbers(CapturedStep& step, const Batch& batch, Use use);
  bool set_numbers(CapturedStep& step, const Numbers& numbers);
  void spot_check(const CapturedStep& step, const SharedBatch& batch, Use use);

  ModelView& view_;
  const ModelTensors& model_;
  Settings settings_;
  SpotChecks spot_checks_;
  Distribution* ranks_ = nullptr;
  std::list<CapturedStep> steps_;  // most recently used first
  // Of graphs that differ in sizes alone, by their structure: how often one of them ran, as spot checks
  // count, from 1. What it was captured for does not count.
  std::unordered_map<std::uint64_t, std::int64_t> runs_;
  std::int64_t num_alike_ = 0, num_forgotten_ = 0;
  std::map<std::string, int> tries_;  // to follow numbers, by key of a step
};

}  // namespace shoal::train
