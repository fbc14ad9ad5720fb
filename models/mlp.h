// SPDX-License-Identifier: Apache-2.0
// A multi-layer perceptron: linear layers with ReLU between them.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <vector>

#include "models/configs.h"

namespace models {

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const MlpConfig& config);
  at::Tensor forward(const at::Tensor& x_BI);  // float [batch, in_features] → logits [batch, out_features]

 private:
  torch::nn::Sequential layers_;
};
TORCH_MODULE(Mlp);

}  // namespace models
