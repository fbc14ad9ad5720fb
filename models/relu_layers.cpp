// SPDX-License-Identifier: Apache-2.0
#include "models/relu_layers.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace models {

std::int64_t append_relu_layers(torch::nn::Sequential& layers, std::int64_t width,
                                const std::vector<std::int64_t>& widths) {
  for (const std::int64_t next : widths) {
    layers->push_back(torch::nn::Linear(width, next));
    layers->push_back(torch::nn::ReLU());
    width = next;
  }
  return width;
}

}  // namespace models
