// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/gradients.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <utility>

#include "shoal/base/error.h"

namespace shoal::train {

using capture::NamedTensor;

static void accumulate(const at::Tensor& parameter, at::Tensor gradient) {
  // What a source, a batch or another gradient shares is no memory to hand on.
  if (gradient.storage().use_count() > 1) gradient = gradient.clone();
  constexpr std::size_t kRefsHere = 1;
  torch::autograd::AccumulateGrad::accumulateGrad(
      parameter, parameter.mutable_grad(), gradient, kRefsHere,
      [&](at::Tensor&& sum) { parameter.mutable_grad() = std::move(sum); });
}

void add_gradients(const std::vector<NamedTensor>& parameters, std::map<std::string, at::Tensor> gradients) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters) {
    auto gradient = gradients.extract(name);
    if (gradient) accumulate(tensor, std::move(gradient.mapped()));
  }
}

void set_gradients(const std::vector<NamedTensor>& parameters, std::map<std::string, at::Tensor> gradients) {
  for (const auto& [name, tensor] : parameters) tensor.mutable_grad() = at::Tensor();
  add_gradients(parameters, std::move(gradients));
}

}  // namespace shoal::train
