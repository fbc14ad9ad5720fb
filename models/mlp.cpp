// SPDX-License-Identifier: Apache-2.0
#include "models/mlp.h"

namespace models {

MlpImpl::MlpImpl(const MlpConfig& config) {
  std::int64_t width = config.in_features;
  for (const std::int64_t next : config.hidden) {
    layers_->push_back(torch::nn::Linear(width, next));
    layers_->push_back(torch::nn::ReLU());
    if (config.dropout > 0) layers_->push_back(torch::nn::Dropout(config.dropout));
    width = next;
  }
  layers_->push_back(torch::nn::Linear(width, config.out_features));
  register_module("layers", layers_);
}

at::Tensor MlpImpl::forward(const at::Tensor& x_BI) { return layers_->forward(x_BI); }

}  // namespace models
