// SPDX-License-Identifier: Apache-2.0
// Views as chains of operators, and their inverses.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "shoal/capture/recorded_tensor.h"

namespace shoal::capture {

// A step by operator name; "self" is put in front of the arguments given.
ViewStep step(const char* op, std::vector<ir::Argument> arguments);

// Steps that lead from the whole to a part of the same storage; both are real or Meta tensors. `permute`,
// `slice` and `select` where they do, so that the view can be sharded; else `as_strided`.
std::vector<ViewStep> steps_between(const at::Tensor& whole, const at::Tensor& part);

// Steps for each output of a view operator with several (split, unbind).
std::vector<ViewStep> steps_of_outputs(const std::string& op, const std::vector<ir::Argument>& arguments,
                                       const at::Tensor& self, const std::vector<at::Tensor>& outputs);

}  // namespace shoal::capture
