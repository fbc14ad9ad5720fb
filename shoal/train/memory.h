// SPDX-License-Identifier: Apache-2.0
// How tensors lie in memory, beside each other and alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace shoal::train {

// Throws InvalidInput naming two parameters that require gradients, are not one tensor, and have memory in
// common, as `b.data = a.data` leaves them: autograd gives each its own summand and optimizers update each.
void refuse_shared_memory(const std::vector<std::pair<std::string, at::Tensor>>& parameters);

// The tensor, detached, if it has the dtype, device and strides of `like`; else a copy that has.
at::Tensor lying_as(const at::Tensor& like, const at::Tensor& tensor);

}  // namespace shoal::train
