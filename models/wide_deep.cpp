// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, N numbers, F fields, E embedding_dim.
#include "models/wide_deep.h"

#include <torch/nn/init.h>

#include "models/relu_layers.h"

namespace models {

WideDeepImpl::WideDeepImpl(const WideDeepConfig& config) {
  wide_ = register_module("wide", torch::nn::Embedding(config.ids, 1));
  torch::nn::init::zeros_(wide_->weight);
  numbers_ = register_module("numbers", torch::nn::Linear(config.numbers, 1));
  if (config.hidden.empty()) return;
  rows_ = register_module("rows", torch::nn::Embedding(config.ids, config.embedding_dim));
  torch::nn::init::normal_(rows_->weight, 0, kRowStd);
  deep_ = torch::nn::Sequential();
  const std::int64_t width =
      append_relu_layers(deep_, config.fields * config.embedding_dim + config.numbers, config.hidden);
  deep_->push_back(torch::nn::Linear(width, 1));
  register_module("deep", deep_);
}

at::Tensor WideDeepImpl::forward(const at::Tensor& numbers_BN, const at::Tensor& ids_BF) {
  const at::Tensor wide_B = wide_->forward(ids_BF).sum({1, 2}) + numbers_->forward(numbers_BN).squeeze(1);
  if (deep_.is_empty()) return wide_B;
  const at::Tensor rows_BFE = rows_->forward(ids_BF);
  return wide_B + deep_->forward(at::cat({rows_BFE.flatten(1), numbers_BN}, 1)).squeeze(1);
}

}  // namespace models
