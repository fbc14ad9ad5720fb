// SPDX-License-Identifier: Apache-2.0
// ResNet of basic blocks: He et al., arXiv:1512.03385. Parameters have torchvision's names and shapes.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <vector>

#include "models/configs.h"

namespace models {

class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride);
  at::Tensor forward(const at::Tensor& x_BCHW);

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::BatchNorm2d bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // null where the shortcut is the identity
};
TORCH_MODULE(BasicBlock);

class ResnetImpl : public torch::nn::Module {
 public:
  explicit ResnetImpl(const ResnetConfig& config);
  at::Tensor forward(const at::Tensor& x_BCHW);  // float images → logits [batch, num_classes]

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::vector<torch::nn::Sequential> layers_;
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(Resnet);

}  // namespace models
