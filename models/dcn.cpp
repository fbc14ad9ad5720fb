// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, N numbers, F fields, E embedding_dim, X what a sample is: F·E + N.
#include "models/dcn.h"

#include <torch/nn/init.h>

#include "models/relu_layers.h"

namespace models {

DcnImpl::DcnImpl(const DcnConfig& config) {
  rows_ = register_module("rows", torch::nn::Embedding(config.ids, config.embedding_dim));
  torch::nn::init::normal_(rows_->weight, 0, kRowStd);
  const std::int64_t width = config.fields * config.embedding_dim + config.numbers;
  for (std::int64_t i = 0; i < config.cross_layers; ++i) cross_->push_back(torch::nn::Linear(width, width));
  register_module("cross", cross_);
  const std::int64_t deep = append_relu_layers(deep_, width, config.hidden);
  register_module("deep", deep_);
  top_ = register_module("top", torch::nn::Linear(width + deep, 1));
}

at::Tensor DcnImpl::forward(const at::Tensor& numbers_BN, const at::Tensor& ids_BF) {
  const at::Tensor sample_BX = at::cat({rows_->forward(ids_BF).flatten(1), numbers_BN}, 1);
  at::Tensor crossed_BX = sample_BX;
  for (const auto& layer : *cross_)
    crossed_BX = sample_BX * layer->as<torch::nn::Linear>()->forward(crossed_BX) + crossed_BX;
  const at::Tensor deep_BD = deep_->is_empty() ? sample_BX : deep_->forward(sample_BX);
  return top_->forward(at::cat({crossed_BX, deep_BD}, 1)).squeeze(1);
}

}  // namespace models
