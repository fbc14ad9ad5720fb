// SPDX-License-Identifier: Apache-2.0
// Root mean square norm: Zhang and Sennrich, arXiv:1910.07467. As Hugging Face has it in Llama and T5:
// computed in float32 at least, and scaled after the result is rounded.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace models {

class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(std::int64_t width, double eps);
  at::Tensor forward(const at::Tensor& x);  // over the last dim

  at::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RmsNorm);

}  // namespace models
