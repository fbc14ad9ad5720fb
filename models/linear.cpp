// SPDX-License-Identifier: Apache-2.0
#include "models/linear.h"

#include <torch/nn/init.h>

namespace models {

torch::nn::Linear linear(std::int64_t in_features, std::int64_t out_features, double weight_std, bool bias) {
  torch::nn::Linear layer(torch::nn::LinearOptions(in_features, out_features).bias(bias));
  torch::nn::init::normal_(layer->weight, 0, weight_std);
  if (bias) torch::nn::init::zeros_(layer->bias);
  return layer;
}

}  // namespace models
