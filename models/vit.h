// SPDX-License-Identifier: Apache-2.0
// Vision transformer with a classifier: Dosovitskiy et al., arXiv:2010.11929. Names and shapes are those of
// the files of Hugging Face's ViTForImageClassification.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"

namespace models {

class VitPatchesImpl : public torch::nn::Module {
 public:
  explicit VitPatchesImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& images_BCHW);  // → [batch, patches, hidden_size]

 private:
  torch::nn::Conv2d projection_{nullptr};
};
TORCH_MODULE(VitPatches);

class VitEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit VitEmbeddingsImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& images_BCHW);  // → [batch, 1 + patches, hidden_size]

 private:
  std::int64_t image_size_;
  at::Tensor cls_token_;
  at::Tensor position_embeddings_;
  VitPatches patch_embeddings_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(VitEmbeddings);

class VitSelfAttentionImpl : public torch::nn::Module {
 public:
  explicit VitSelfAttentionImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD);

 private:
  std::int64_t heads_;
  double dropout_;
  torch::nn::Linear query_{nullptr};
  torch::nn::Linear key_{nullptr};
  torch::nn::Linear value_{nullptr};
};
TORCH_MODULE(VitSelfAttention);

class VitDenseImpl : public torch::nn::Module {
 public:
  VitDenseImpl(std::int64_t in_features, std::int64_t out_features);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear dense_{nullptr};
};
TORCH_MODULE(VitDense);

class VitAttentionImpl : public torch::nn::Module {
 public:
  explicit VitAttentionImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD);

 private:
  VitSelfAttention attention_{nullptr};
  VitDense output_{nullptr};
};
TORCH_MODULE(VitAttention);

class VitLayerImpl : public torch::nn::Module {
 public:
  explicit VitLayerImpl(const VitConfig& config);
  at::Tensor forward(at::Tensor x_BTD);

 private:
  VitAttention attention_{nullptr};
  VitDense intermediate_{nullptr};
  VitDense output_{nullptr};
  torch::nn::LayerNorm layernorm_before_{nullptr};
  torch::nn::LayerNorm layernorm_after_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(VitLayer);

class VitEncoderImpl : public torch::nn::Module {
 public:
  explicit VitEncoderImpl(const VitConfig& config);
  at::Tensor forward(at::Tensor x_BTD);

 private:
  torch::nn::ModuleList layer_{nullptr};
};
TORCH_MODULE(VitEncoder);

class VitBodyImpl : public torch::nn::Module {
 public:
  explicit VitBodyImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& images_BCHW);  // → [batch, 1 + patches, hidden_size]

 private:
  VitEmbeddings embeddings_{nullptr};
  VitEncoder encoder_{nullptr};
  torch::nn::LayerNorm layernorm_{nullptr};
};
TORCH_MODULE(VitBody);

class VitImpl : public torch::nn::Module {
 public:
  explicit VitImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& images_BCHW);  // float images → logits [batch, num_classes]

 private:
  VitBody vit_{nullptr};
  torch::nn::Linear classifier_{nullptr};
};
TORCH_MODULE(Vit);

}  // namespace models
