// SPDX-License-Identifier: Apache-2.0
// BERT with its masked language model head: Devlin et al., arXiv:1810.04805. Names and shapes are those of
// Hugging Face's BertForMaskedLM: the output projection is the word embedding, with a bias of its own.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"

namespace models {

class BertEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit BertEmbeddingsImpl(const BertConfig& config);
  at::Tensor forward(const at::Tensor& tokens_BT, const at::Tensor& token_types_BT);

  torch::nn::Embedding word_embeddings{nullptr};

 private:
  torch::nn::Embedding position_embeddings_{nullptr};
  torch::nn::Embedding token_type_embeddings_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(BertEmbeddings);

class BertSelfAttentionImpl : public torch::nn::Module {
 public:
  explicit BertSelfAttentionImpl(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& mask_B11T);

 private:
  std::int64_t heads_;
  double dropout_;
  torch::nn::Linear query_{nullptr};
  torch::nn::Linear key_{nullptr};
  torch::nn::Linear value_{nullptr};
};
TORCH_MODULE(BertSelfAttention);

// A projection, then the norm of what it adds to.
class BertOutputImpl : public torch::nn::Module {
 public:
  BertOutputImpl(const BertConfig& config, std::int64_t in_features);
  at::Tensor forward(const at::Tensor& y_BTI, const at::Tensor& x_BTD);

 private:
  torch::nn::Linear dense_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(BertOutput);

class BertAttentionImpl : public torch::nn::Module {
 public:
  explicit BertAttentionImpl(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& mask_B11T);

 private:
  BertSelfAttention self_{nullptr};
  BertOutput output_{nullptr};
};
TORCH_MODULE(BertAttention);

class BertDenseImpl : public torch::nn::Module {  // a projection and GELU
 public:
  BertDenseImpl(std::int64_t in_features, std::int64_t out_features);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear dense_{nullptr};
};
TORCH_MODULE(BertDense);

class BertLayerImpl : public torch::nn::Module {
 public:
  explicit BertLayerImpl(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& mask_B11T);

 private:
  BertAttention attention_{nullptr};
  BertDense intermediate_{nullptr};
  BertOutput output_{nullptr};
};
TORCH_MODULE(BertLayer);

class BertEncoderImpl : public torch::nn::Module {
 public:
  explicit BertEncoderImpl(const BertConfig& config);
  at::Tensor forward(at::Tensor x_BTD, const at::Tensor& mask_B11T);

 private:
  torch::nn::ModuleList layer_{nullptr};
};
TORCH_MODULE(BertEncoder);

class BertBodyImpl : public torch::nn::Module {
 public:
  explicit BertBodyImpl(const BertConfig& config);
  at::Tensor forward(const at::Tensor& tokens_BT, const at::Tensor& attention_mask_BT,
                     const at::Tensor& token_types_BT);  // → hidden states [batch, time, hidden_size]

  BertEmbeddings embeddings{nullptr};

 private:
  BertEncoder encoder_{nullptr};
};
TORCH_MODULE(BertBody);

class BertTransformImpl : public torch::nn::Module {
 public:
  explicit BertTransformImpl(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD);

 private:
  torch::nn::Linear dense_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
};
TORCH_MODULE(BertTransform);

class BertPredictionsImpl : public torch::nn::Module {
 public:
  explicit BertPredictionsImpl(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& word_embeddings_VD);

 private:
  BertTransform transform_{nullptr};
  at::Tensor bias_;
};
TORCH_MODULE(BertPredictions);

class BertHeadImpl : public torch::nn::Module {
 public:
  explicit BertHeadImpl(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& word_embeddings_VD);

 private:
  BertPredictions predictions_{nullptr};
};
TORCH_MODULE(BertHead);

class BertImpl : public torch::nn::Module {
 public:
  explicit BertImpl(const BertConfig& config);
  // int64 [batch, time] → logits [batch, time, vocab_size]. Where attention_mask is 0 a token is padding,
  // which no other looks at; token types are 0 where none are given.
  at::Tensor forward(const at::Tensor& tokens_BT, const at::Tensor& attention_mask_BT = {},
                     const at::Tensor& token_types_BT = {});

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}, {2, torch::nn::AnyValue(at::Tensor())})

 private:
  BertBody bert_{nullptr};
  BertHead cls_{nullptr};
};
TORCH_MODULE(Bert);

}  // namespace models
