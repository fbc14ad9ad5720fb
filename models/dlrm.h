// SPDX-License-Identifier: Apache-2.0
// A recommender of dense and categorical features: Naumov et al., arXiv:1906.00091, with dense embeddings,
// one row of each table a sample. Parameters have the names of the authors' code: bot_l, emb_l, top_l.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <vector>

#include "models/configs.h"

namespace models {

class DlrmImpl : public torch::nn::Module {
 public:
  explicit DlrmImpl(const DlrmConfig& config);
  // float [batch, dense_features], int64 [batch, tables] → logits [batch]
  at::Tensor forward(const at::Tensor& dense_BF, const at::Tensor& categories_BC);

 private:
  torch::nn::Sequential bot_l_;
  torch::nn::ModuleList emb_l_;
  torch::nn::Sequential top_l_;
};
TORCH_MODULE(Dlrm);

}  // namespace models
