// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, N numbers, F fields, K factors, R numbers of a row: 1 + K.
#include "models/deepfm.h"

#include <torch/nn/init.h>

#include "models/relu_layers.h"

namespace models {

DeepFmImpl::DeepFmImpl(const DeepFmConfig& config) : factors_(config.factors) {
  rows_ = register_module("rows", torch::nn::Embedding(config.ids, 1 + config.factors));
  torch::nn::init::normal_(rows_->weight, 0, kRowStd);
  const std::int64_t width =
      append_relu_layers(deep_, config.fields * config.factors + config.numbers, config.hidden);
  deep_->push_back(torch::nn::Linear(width, 1));
  register_module("deep", deep_);
}

at::Tensor DeepFmImpl::forward(const at::Tensor& numbers_BN, const at::Tensor& ids_BF) {
  const at::Tensor rows_BFR = rows_->forward(ids_BF);
  const at::Tensor first_B = rows_BFR.select(2, 0).sum(1);
  const at::Tensor factors_BFK = rows_BFR.narrow(2, 1, factors_);
  // Σ over pairs ⟨v, w⟩ = (‖Σ v‖² − Σ ‖v‖²) / 2
  const at::Tensor pairs_B = (factors_BFK.sum(1).square().sum(1) - factors_BFK.square().sum({1, 2})) * 0.5;
  const at::Tensor deep_B1 = deep_->forward(at::cat({factors_BFK.flatten(1), numbers_BN}, 1));
  return first_B + pairs_B + deep_B1.squeeze(1);
}

}  // namespace models
