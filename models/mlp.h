// SPDX-License-Identifier: Apache-2.0
// A multi-layer perceptron: linear layers with ReLU between them.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <vector>

namespace models {

struct MlpConfig {
  std::int64_t in_features = 784;
  std::vector<std::int64_t> hidden = {256, 256};  // width of each hidden layer
  std::int64_t out_features = 10;
  double dropout = 0;  // after each hidden layer

  friend bool operator==(const MlpConfig&, const MlpConfig&) = default;
};

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const MlpConfig& config);
  at::Tensor forward(const at::Tensor& x_BI);  // float [batch, in_features] → logits [batch, out_features]

 private:
  torch::nn::Sequential layers_;
};
TORCH_MODULE(Mlp);

}  // namespace models
