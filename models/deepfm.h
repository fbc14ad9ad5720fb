// SPDX-License-Identifier: Apache-2.0
// A factorisation machine and a deep network over the same rows: Guo et al., arXiv:1703.04247. A row is an id's
// weight and its factors.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"

namespace models {

class DeepFmImpl : public torch::nn::Module {
 public:
  explicit DeepFmImpl(const DeepFmConfig& config);
  // float [batch, numbers], int64 [batch, fields] → logits [batch]
  at::Tensor forward(const at::Tensor& numbers_BN, const at::Tensor& ids_BF);

 private:
  std::int64_t factors_;
  torch::nn::Embedding rows_ = nullptr;
  torch::nn::Sequential deep_;
};
TORCH_MODULE(DeepFm);

}  // namespace models
