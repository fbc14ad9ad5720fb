// SPDX-License-Identifier: Apache-2.0
// A forward that leaves a module's buffers as they were: running statistics, counts.
//
//   Tensor fake = without_trace(*generator, [&] { return generator->forward(noise); });   // in a discriminator's loss
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <functional>

namespace shoal {

// What `act` returns. The buffers of the module and of those in it have the values then that they had before;
// also in a loss that a trainer captures. Where `act` throws, eager code has them as they are.
at::Tensor without_trace(const torch::nn::Module& module, const std::function<at::Tensor()>& act);

}  // namespace shoal
