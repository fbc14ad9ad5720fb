// SPDX-License-Identifier: Apache-2.0
// A torch.optim optimizer, read for what it says: class, parameter groups and their options. Its step() is
// never called; what changes its groups between steps is followed.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <string>
#include <vector>

#include "shoal/compile/optimizer.h"
#include "shoal/python/identities.h"
#include "shoal/rewrite/precision.h"
#include "shoal/train/trainer.h"

namespace shoal::python {

class TorchOptimizer {
 public:
  // Throws InvalidInput for a class or an option that Shoal does not have, with the list of those it has, and
  // if none of its parameters is the model's. `state_dtype`: Optimizer's; refused for those that have none.
  // `master`: the plan's. `tables`: patterns of parameters whose rows and their state are elsewhere.
  TorchOptimizer(py::object optimizer, const ModelView::NamedTensors& parameters, DType state_dtype,
                 rewrite::Master master, std::vector<std::string> tables);

  // Looks up groups, members and options, and whether they, or the names of members, are others than before:
  // everything but learning rates. Cheap where nothing was touched.
  bool follow(const ModelView::NamedTensors& parameters);

  // One part a parameter group.
  std::vector<OptimizerPart> parts() const { return parts_of(members_); }
  std::vector<double> learning_rates() const;

  struct Member {
    std::string name;  // the model's, or "param_groups[1][0]"
    py::object parameter;
    at::Tensor tensor;  // the parameter
    std::size_t group;
    bool counts;                     // its state has a "step"
    bool torch_counts;               // and it has in PyTorch
    std::vector<std::string> keeps;  // other names in its state: "exp_avg"
    bool is_table = false;           // its rows have their state where they are
    bool operator==(const Member& other) const {
      return name == other.name && parameter.is(other.parameter) && group == other.group &&
             counts == other.counts && keeps == other.keeps;
    }
  };
  const std::vector<Member>& members() const { return members_; }
  // Those that are none of the model's: updated where the loss depends on them.
  const ModelView::NamedTensors& foreign() const { return foreign_; }

  // Schedulers warn when they run before the optimizer did.
  void note_step() const;
  const py::object& object() const { return optimizer_; }

 private:
  std::vector<Member> members_of(const ModelView::NamedTensors& parameters);
  std::vector<OptimizerPart> parts_of(const std::vector<Member>& members) const;
  std::string options();

  py::object optimizer_;
  DType state_dtype_;
  rewrite::Master master_;
  std::vector<std::string> tables_;
  std::vector<Member> members_;
  ModelView::NamedTensors foreign_;
  ModelView::NamedTensors known_;  // the model's parameters
  Identities groups_seen_;
  std::string options_;
  bool has_tensor_options_ = false;
};

}  // namespace shoal::python
