// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, T 1 + patches, D hidden_size, C channels, H height, W width.
#include "models/vit.h"

#include <torch/nn/init.h>

#include "models/attention.h"
#include "models/linear.h"

namespace models {

static torch::nn::LayerNorm layer_norm(const VitConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps));
}

VitPatchesImpl::VitPatchesImpl(const VitConfig& config) {
  projection_ = register_module(
      "projection",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(config.num_channels, config.hidden_size, config.patch_size)
                            .stride(config.patch_size)));
  torch::nn::init::normal_(projection_->weight, 0, kInitStd);
  torch::nn::init::zeros_(projection_->bias);
}

at::Tensor VitPatchesImpl::forward(const at::Tensor& images_BCHW) {
  return projection_->forward(images_BCHW).flatten(2).transpose(1, 2);
}

VitEmbeddingsImpl::VitEmbeddingsImpl(const VitConfig& config) : image_size_(config.image_size) {
  TORCH_CHECK(config.image_size % config.patch_size == 0, "vit: image_size is ", config.image_size,
              ", not a multiple of patch_size ", config.patch_size);
  const std::int64_t per_side = config.image_size / config.patch_size;
  cls_token_ = register_parameter(
      "cls_token", torch::nn::init::normal_(torch::empty({1, 1, config.hidden_size}), 0, kInitStd));
  position_embeddings_ = register_parameter(
      "position_embeddings",
      torch::nn::init::normal_(torch::empty({1, 1 + per_side * per_side, config.hidden_size}), 0, kInitStd));
  patch_embeddings_ = register_module("patch_embeddings", VitPatches(config));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.hidden_dropout_prob));
}

at::Tensor VitEmbeddingsImpl::forward(const at::Tensor& images_BCHW) {
  TORCH_CHECK(images_BCHW.size(2) == image_size_ && images_BCHW.size(3) == image_size_, "vit: an image is ",
              images_BCHW.size(2), "x", images_BCHW.size(3), ", but image_size is ", image_size_);
  const at::Tensor class_B1D = cls_token_.expand({images_BCHW.size(0), -1, -1});
  const at::Tensor x_BTD = at::cat({class_B1D, patch_embeddings_->forward(images_BCHW)}, 1);
  return dropout_->forward(x_BTD + position_embeddings_);
}

VitSelfAttentionImpl::VitSelfAttentionImpl(const VitConfig& config)
    : heads_(config.num_attention_heads), dropout_(config.attention_probs_dropout_prob) {
  TORCH_CHECK(config.hidden_size % heads_ == 0, "vit: hidden_size is ", config.hidden_size,
              ", not a multiple of num_attention_heads ", heads_);
  query_ = register_module("query", linear(config.hidden_size, config.hidden_size));
  key_ = register_module("key", linear(config.hidden_size, config.hidden_size));
  value_ = register_module("value", linear(config.hidden_size, config.hidden_size));
}

at::Tensor VitSelfAttentionImpl::forward(const at::Tensor& x_BTD) {
  return joined(at::scaled_dot_product_attention(
      by_head(query_->forward(x_BTD), heads_), by_head(key_->forward(x_BTD), heads_),
      by_head(value_->forward(x_BTD), heads_), {}, is_training() ? dropout_ : 0.0));
}

VitDenseImpl::VitDenseImpl(std::int64_t in_features, std::int64_t out_features) {
  dense_ = register_module("dense", linear(in_features, out_features));
}

at::Tensor VitDenseImpl::forward(const at::Tensor& x) { return dense_->forward(x); }

VitAttentionImpl::VitAttentionImpl(const VitConfig& config) {
  attention_ = register_module("attention", VitSelfAttention(config));
  output_ = register_module("output", VitDense(config.hidden_size, config.hidden_size));
}

at::Tensor VitAttentionImpl::forward(const at::Tensor& x_BTD) {
  return output_->forward(attention_->forward(x_BTD));
}

VitLayerImpl::VitLayerImpl(const VitConfig& config) {
  attention_ = register_module("attention", VitAttention(config));
  intermediate_ = register_module("intermediate", VitDense(config.hidden_size, config.intermediate_size));
  output_ = register_module("output", VitDense(config.intermediate_size, config.hidden_size));
  layernorm_before_ = register_module("layernorm_before", layer_norm(config));
  layernorm_after_ = register_module("layernorm_after", layer_norm(config));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.hidden_dropout_prob));
}

at::Tensor VitLayerImpl::forward(at::Tensor x_BTD) {
  x_BTD = x_BTD + dropout_->forward(attention_->forward(layernorm_before_->forward(x_BTD)));
  const at::Tensor y_BTI = torch::gelu(intermediate_->forward(layernorm_after_->forward(x_BTD)));
  return x_BTD + dropout_->forward(output_->forward(y_BTI));
}

VitEncoderImpl::VitEncoderImpl(const VitConfig& config) {
  layer_ = register_module("layer", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) layer_->push_back(VitLayer(config));
}

at::Tensor VitEncoderImpl::forward(at::Tensor x_BTD) {
  for (const auto& layer : *layer_) x_BTD = layer->as<VitLayer>()->forward(x_BTD);
  return x_BTD;
}

VitBodyImpl::VitBodyImpl(const VitConfig& config) {
  embeddings_ = register_module("embeddings", VitEmbeddings(config));
  encoder_ = register_module("encoder", VitEncoder(config));
  layernorm_ = register_module("layernorm", layer_norm(config));
}

at::Tensor VitBodyImpl::forward(const at::Tensor& images_BCHW) {
  return layernorm_->forward(encoder_->forward(embeddings_->forward(images_BCHW)));
}

VitImpl::VitImpl(const VitConfig& config) {
  vit_ = register_module("vit", VitBody(config));
  classifier_ = register_module("classifier", linear(config.hidden_size, config.num_classes));
}

at::Tensor VitImpl::forward(const at::Tensor& images_BCHW) {
  return classifier_->forward(vit_->forward(images_BCHW).select(1, 0));
}

}  // namespace models
