// SPDX-License-Identifier: Apache-2.0
// What people wrap models in: torch.compile, and PyTorch's data parallelism.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace shoal::python {

// The model inside DataParallel and DistributedDataParallel. Throws InvalidInput where the wrapper would do
// what nobody does then: average gradients of ranks that Shoal knows nothing of, or keep parameters in parts.
py::object unwrapped(py::object model, bool has_parallelism);

// While it lives, what torch.compile made runs as it was written: Dynamo cannot see what is recorded.
class Uncompiled {
 public:
  Uncompiled();
  ~Uncompiled();
  Uncompiled(const Uncompiled&) = delete;
  Uncompiled& operator=(const Uncompiled&) = delete;

 private:
  py::object stance_;  // null where Dynamo was never loaded
};

}  // namespace shoal::python
