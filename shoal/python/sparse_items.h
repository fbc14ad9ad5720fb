// SPDX-License-Identifier: Apache-2.0
// Tensors of a batch as the graph's inputs: a sparse one is several, one a component.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "shoal/train/trainer.h"

namespace shoal::python {

// Returns what a graph depends on besides shapes: layout and sizes of a sparse tensor.
std::string add_item(Batch::Map& items, const std::string& name, const at::Tensor& tensor);
// The item as the model sees it, made from the batch's tensors. `given`: what add_item was called with.
at::Tensor item_in(const Batch& batch, const std::string& name, py::handle given);

}  // namespace shoal::python
