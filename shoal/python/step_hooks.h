// SPDX-License-Identifier: Apache-2.0
// What people hang on optimizer.step(), which a Trainer never calls.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace shoal::python {

// With the interpreter's lock.
class StepHooks {
 public:
  explicit StepHooks(py::object optimizer);

  // Before a step. Throws InvalidInput for hooks that want the gradients of an update which has not been
  // made, and for a step() that is not PyTorch's own; learning-rate schedulers' is.
  void check();
  // After an update: post hooks, the optimizer's own and those of all optimizers.
  void after() const;

 private:
  py::object optimizer_;
  py::dict global_before_, global_after_;
  py::object of_class_, of_object_;  // step, as it was found good
};

}  // namespace shoal::python
