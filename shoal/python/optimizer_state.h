// SPDX-License-Identifier: Apache-2.0
// optimizer.state as the state of a Trainer. On one device they are the same tensors, whoever changes or
// replaces them:
//
//   optimizer.state[p]["exp_avg"]  ──shared──  Trainer  "fc.weight.exp_avg"
//   optimizer.state[p]["step"]     ──written after each step, read before──  how often p was updated
//
// Of several ranks each trainer keeps its parts; from the first update on optimizer.state then has an empty
// dictionary for every parameter, so that a cleared or loaded state is seen.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shoal/python/identities.h"
#include "shoal/python/optimizer.h"
#include "shoal/train/trainer.h"

namespace shoal::python {

// With the interpreter's lock.
class OptimizerState {
 public:
  // Borrows both.
  OptimizerState(const TorchOptimizer& optimizer, Trainer& trainer, bool is_in_parts)
      : optimizer_(optimizer), trainer_(trainer), is_in_parts_(is_in_parts) {}

  // Before a step: the trainer goes on from what is in optimizer.state. Throws InvalidInput for a state with
  // something missing, or of another shape than its parameter.
  void follow();
  // At the next follow() everything is looked up again: there are other members.
  void forget() { is_known_ = false; }
  // At the next follow() steps count from the most updates that a parameter has had.
  void forget_steps();
  // After a step: counts, and state that the step has made.
  void publish();

  // State in parts is put into optimizer.state, whole, by all ranks at once; and taken out again.
  void gather();
  void put_away();

 private:
  struct Kept {
    TorchOptimizer::Member member;
    at::Tensor parameter;                                    // as it lay when the state was taken
    at::Tensor step;                                         // undefined: not there
    std::vector<std::pair<at::Tensor, at::Tensor>> tensors;  // the optimizer's, and the trainer's of it
    bool is_there = false;
  };

  py::dict state() const;
  bool is_current() const;
  void take();
  static void drop_of_table(const TorchOptimizer::Member& member, py::dict& all);
  void read(Kept& kept, const py::dict& own, std::map<std::string, at::Tensor>& state, Progress& progress);
  void share(Kept& kept, const py::dict& own, const std::map<std::string, at::Tensor>& state);
  void follow_counts();

  const TorchOptimizer& optimizer_;
  Trainer& trainer_;
  bool is_in_parts_;
  bool is_known_ = false;
  bool is_put_away_ = false;
  bool starts_ = true;
  Identities seen_;
  std::vector<Kept> kept_;  // by name
};

}  // namespace shoal::python
