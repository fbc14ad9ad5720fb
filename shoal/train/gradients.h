// SPDX-License-Identifier: Apache-2.0
// The parameters' own `.grad`, written as autograd writes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "shoal/capture/capture.h"

namespace shoal::train {

// Adds to the parameters' `.grad` as loss.backward() does: in place where there is one; else it becomes
// memory that nobody else has, of the parameter's strides. Parameters without a gradient keep what they have.
// The map is taken, so that gradients can be handed on without a copy.
void add_gradients(const std::vector<capture::NamedTensor>& parameters,
                   std::map<std::string, at::Tensor> gradients);

// As after zero_grad(set_to_none) and add_gradients.
void set_gradients(const std::vector<capture::NamedTensor>& parameters,
                   std::map<std::string, at::Tensor> gradients);

}  // namespace shoal::train
