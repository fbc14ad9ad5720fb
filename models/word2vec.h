// SPDX-License-Identifier: Apache-2.0
// Skip-grams with negative samples: Mikolov et al., arXiv:1310.4546. Each word has a vector as a centre and one as
// a neighbour; a centre's products with its neighbour, and with words drawn at random, are the logits.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"

namespace models {

class Word2VecImpl : public torch::nn::Module {
 public:
  explicit Word2VecImpl(const Word2VecConfig& config);
  // int64 [batch], int64 [batch, 1 + negatives] → logits [batch, 1 + negatives]
  at::Tensor forward(const at::Tensor& centres_B, const at::Tensor& neighbours_BK);

 private:
  torch::nn::Embedding centres_ = nullptr, neighbours_ = nullptr;
};
TORCH_MODULE(Word2Vec);

}  // namespace models
