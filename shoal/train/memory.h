// SPDX-License-Identifier: Apache-2.0
// How tensors lie in memory, beside each other and alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::train {

// Throws InvalidInput naming two parameters that require gradients, are not one tensor, and have memory in
// common, as `b.data = a.data` leaves them: autograd gives each its own summand and optimizers update each.
void refuse_shared_memory(const std::vector<std::pair<std::string, at::Tensor>>& parameters);

// The tensor, detached, if it is of this type on this device; else a copy that is.
at::Tensor lying_as(const ir::TensorType& type, at::Device device, const at::Tensor& tensor);

}  // namespace shoal::train
