// SPDX-License-Identifier: Apache-2.0
#include "models/resnet.h"

#include <torch/nn/init.h>

#include <string>

namespace models {

static torch::nn::Conv2d conv(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel,
                              std::int64_t stride) {
  auto layer = torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, out_channels, kernel)
                                     .stride(stride)
                                     .padding(kernel / 2)
                                     .bias(false));
  torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
  return layer;
}

BasicBlockImpl::BasicBlockImpl(std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride) {
  conv1_ = register_module("conv1", conv(in_channels, out_channels, 3, stride));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(out_channels));
  conv2_ = register_module("conv2", conv(out_channels, out_channels, 3, 1));
  bn2_ = register_module("bn2", torch::nn::BatchNorm2d(out_channels));
  if (stride != 1 || in_channels != out_channels)
    downsample_ =
        register_module("downsample", torch::nn::Sequential(conv(in_channels, out_channels, 1, stride),
                                                            torch::nn::BatchNorm2d(out_channels)));
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& x_BCHW) {
  at::Tensor y_BCHW = bn1_->forward(conv1_->forward(x_BCHW)).relu_();
  y_BCHW = bn2_->forward(conv2_->forward(y_BCHW));
  y_BCHW += downsample_.is_empty() ? x_BCHW : downsample_->forward(x_BCHW);
  return y_BCHW.relu_();
}

ResnetImpl::ResnetImpl(const ResnetConfig& config) {
  conv1_ = register_module(
      "conv1",
      torch::nn::Conv2d(
          torch::nn::Conv2dOptions(config.in_channels, config.width, 7).stride(2).padding(3).bias(false)));
  torch::nn::init::kaiming_normal_(conv1_->weight, 0, torch::kFanOut, torch::kReLU);
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(config.width));
  std::int64_t channels = config.width;
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
    const std::int64_t out_channels = config.width << layer;
    torch::nn::Sequential blocks;
    for (std::int64_t block = 0; block < config.layers[layer]; ++block) {
      const std::int64_t stride = block == 0 && layer > 0 ? 2 : 1;
      blocks->push_back(BasicBlock(channels, out_channels, stride));
      channels = out_channels;
    }
    layers_.push_back(register_module("layer" + std::to_string(layer + 1), blocks));
  }
  fc_ = register_module("fc", torch::nn::Linear(channels, config.num_classes));
}

at::Tensor ResnetImpl::forward(const at::Tensor& x_BCHW) {
  at::Tensor y_BCHW = bn1_->forward(conv1_->forward(x_BCHW)).relu_();
  y_BCHW = torch::max_pool2d(y_BCHW, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (torch::nn::Sequential& layer : layers_) y_BCHW = layer->forward(y_BCHW);
  return fc_->forward(torch::adaptive_avg_pool2d(y_BCHW, {1, 1}).flatten(1));
}

}  // namespace models
