// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace models {

constexpr double kInitStd = 0.02;  // of the weights that BERT, GPT-2, Llama and ViT begin with

// A Linear whose weights are drawn from a normal distribution, and whose bias is 0.
torch::nn::Linear linear(std::int64_t in_features, std::int64_t out_features, double weight_std = kInitStd,
                         bool bias = true);

}  // namespace models
