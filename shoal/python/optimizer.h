// SPDX-License-Identifier: Apache-2.0
// A torch.optim optimizer, read for what it says: class, parameter groups and their options. Its step() is
// never called; schedulers that change its groups are followed.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shoal/train/optimizer.h"
#include "shoal/train/trainer.h"

namespace shoal::python {

class TorchOptimizer {
 public:
  // Throws InvalidInput for a class or an option that Shoal does not have, with the list of those it has, and
  // for a parameter that is none of the model's.
  TorchOptimizer(py::object optimizer, const ModelView::NamedTensors& parameters);

  // One part a parameter group.
  std::vector<OptimizerPart> parts() const;
  std::vector<double> learning_rates() const;
  // Whether an option other than the learning rate differs from what it was when parts() was called last.
  bool changed() const;

  // The optimizer's own state, to and from names like "fc.weight.exp_avg". Tensors are shared.
  std::map<std::string, at::Tensor> state(Progress& progress) const;
  void set_state(const std::map<std::string, at::Tensor>& state, const Progress& progress) const;
  void clear_state() const { optimizer_.attr("state").attr("clear")(); }

  // Schedulers warn when they run before the optimizer did.
  void note_step() const;
  py::handle object() const { return optimizer_; }

 private:
  // Calls visit(name, parameter) for every parameter of the groups.
  void for_each_parameter(const std::function<void(const std::string&, py::handle)>& visit) const;
  std::string options() const;

  py::object optimizer_;
  std::vector<std::vector<std::string>> names_;  // of each group's parameters
  mutable std::string options_;
};

}  // namespace shoal::python
