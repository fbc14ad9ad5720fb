// SPDX-License-Identifier: Apache-2.0
// A linear model of ids beside a deep network of their embeddings: Cheng et al., arXiv:1606.07792. Without hidden
// layers it is the linear model alone: logistic regression.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"

namespace models {

class WideDeepImpl : public torch::nn::Module {
 public:
  explicit WideDeepImpl(const WideDeepConfig& config);
  // float [batch, numbers], int64 [batch, fields] → logits [batch]
  at::Tensor forward(const at::Tensor& numbers_BN, const at::Tensor& ids_BF);

 private:
  torch::nn::Embedding wide_ = nullptr, rows_ = nullptr;
  torch::nn::Linear numbers_ = nullptr;
  torch::nn::Sequential deep_ = nullptr;
};
TORCH_MODULE(WideDeep);

}  // namespace models
