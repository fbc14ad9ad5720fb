// SPDX-License-Identifier: Apache-2.0
// Deep and cross network, version 2: Wang et al., arXiv:2008.13535, cross layers beside deep ones.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"

namespace models {

class DcnImpl : public torch::nn::Module {
 public:
  explicit DcnImpl(const DcnConfig& config);
  // float [batch, numbers], int64 [batch, fields] → logits [batch]
  at::Tensor forward(const at::Tensor& numbers_BN, const at::Tensor& ids_BF);

 private:
  torch::nn::Embedding rows_ = nullptr;
  torch::nn::ModuleList cross_;
  torch::nn::Sequential deep_;
  torch::nn::Linear top_ = nullptr;
};
TORCH_MODULE(Dcn);

}  // namespace models
