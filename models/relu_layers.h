// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

namespace models {

constexpr double kRowStd = 0.01;  // of the rows that models of clicks begin with

// Hidden layers with ReLU, as PyTorch begins them; returns the last one's width.
std::int64_t append_relu_layers(torch::nn::Sequential& layers, std::int64_t width,
                                const std::vector<std::int64_t>& widths);

}  // namespace models
