// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, K words beside a centre: 1 + negatives, E embedding_dim.
#include "models/word2vec.h"

#include <torch/nn/init.h>

namespace models {

Word2VecImpl::Word2VecImpl(const Word2VecConfig& config) {
  centres_ = register_module("centres", torch::nn::Embedding(config.words, config.embedding_dim));
  neighbours_ = register_module("neighbours", torch::nn::Embedding(config.words, config.embedding_dim));
  const double range = 0.5 / static_cast<double>(config.embedding_dim);
  torch::nn::init::uniform_(centres_->weight, -range, range);
  torch::nn::init::zeros_(neighbours_->weight);
}

at::Tensor Word2VecImpl::forward(const at::Tensor& centres_B, const at::Tensor& neighbours_BK) {
  const at::Tensor centres_BE = centres_->forward(centres_B);
  const at::Tensor neighbours_BKE = neighbours_->forward(neighbours_BK);
  return at::bmm(neighbours_BKE, centres_BE.unsqueeze(2)).squeeze(2);
}

}  // namespace models
