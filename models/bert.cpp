// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, T time, D hidden_size, H heads, K width of a head, I intermediate_size, V vocabulary.
#include "models/bert.h"

#include <torch/nn/init.h>

#include "models/attention.h"
#include "models/linear.h"

namespace models {

static torch::nn::Embedding embedding(std::int64_t rows, std::int64_t width) {
  torch::nn::Embedding table(rows, width);
  torch::nn::init::normal_(table->weight, 0, kInitStd);
  return table;
}

static torch::nn::LayerNorm layer_norm(const BertConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps));
}

BertEmbeddingsImpl::BertEmbeddingsImpl(const BertConfig& config) {
  const std::int64_t width = config.hidden_size;
  word_embeddings = register_module("word_embeddings", embedding(config.vocab_size, width));
  position_embeddings_ =
      register_module("position_embeddings", embedding(config.max_position_embeddings, width));
  token_type_embeddings_ = register_module("token_type_embeddings", embedding(config.type_vocab_size, width));
  norm_ = register_module("LayerNorm", layer_norm(config));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.hidden_dropout_prob));
}

at::Tensor BertEmbeddingsImpl::forward(const at::Tensor& tokens_BT, const at::Tensor& token_types_BT) {
  const std::int64_t time = tokens_BT.size(1);
  TORCH_CHECK(time <= position_embeddings_->weight.size(0), "bert: ", time,
              " tokens in a row, but max_position_embeddings is ", position_embeddings_->weight.size(0));
  const at::Tensor types_BT = token_types_BT.defined() ? token_types_BT : at::zeros_like(tokens_BT);
  const at::Tensor positions_1T = torch::arange(time, tokens_BT.options().dtype(torch::kLong)).unsqueeze(0);
  const at::Tensor x_BTD = word_embeddings->forward(tokens_BT) + token_type_embeddings_->forward(types_BT) +
                           position_embeddings_->forward(positions_1T);
  return dropout_->forward(norm_->forward(x_BTD));
}

BertSelfAttentionImpl::BertSelfAttentionImpl(const BertConfig& config)
    : heads_(config.num_attention_heads), dropout_(config.attention_probs_dropout_prob) {
  TORCH_CHECK(config.hidden_size % heads_ == 0, "bert: hidden_size is ", config.hidden_size,
              ", not a multiple of num_attention_heads ", heads_);
  query_ = register_module("query", linear(config.hidden_size, config.hidden_size));
  key_ = register_module("key", linear(config.hidden_size, config.hidden_size));
  value_ = register_module("value", linear(config.hidden_size, config.hidden_size));
}

at::Tensor BertSelfAttentionImpl::forward(const at::Tensor& x_BTD, const at::Tensor& mask_B11T) {
  const auto mask =
      mask_B11T.defined() ? std::optional(mask_B11T.expand({-1, -1, x_BTD.size(1), -1})) : std::nullopt;
  return joined(at::scaled_dot_product_attention(
      by_head(query_->forward(x_BTD), heads_), by_head(key_->forward(x_BTD), heads_),
      by_head(value_->forward(x_BTD), heads_), mask, is_training() ? dropout_ : 0.0));
}

BertOutputImpl::BertOutputImpl(const BertConfig& config, std::int64_t in_features) {
  dense_ = register_module("dense", linear(in_features, config.hidden_size));
  norm_ = register_module("LayerNorm", layer_norm(config));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.hidden_dropout_prob));
}

at::Tensor BertOutputImpl::forward(const at::Tensor& y_BTI, const at::Tensor& x_BTD) {
  return norm_->forward(dropout_->forward(dense_->forward(y_BTI)) + x_BTD);
}

BertAttentionImpl::BertAttentionImpl(const BertConfig& config) {
  self_ = register_module("self", BertSelfAttention(config));
  output_ = register_module("output", BertOutput(config, config.hidden_size));
}

at::Tensor BertAttentionImpl::forward(const at::Tensor& x_BTD, const at::Tensor& mask_B11T) {
  return output_->forward(self_->forward(x_BTD, mask_B11T), x_BTD);
}

BertDenseImpl::BertDenseImpl(std::int64_t in_features, std::int64_t out_features) {
  dense_ = register_module("dense", linear(in_features, out_features));
}

at::Tensor BertDenseImpl::forward(const at::Tensor& x) { return torch::gelu(dense_->forward(x)); }

BertLayerImpl::BertLayerImpl(const BertConfig& config) {
  attention_ = register_module("attention", BertAttention(config));
  intermediate_ = register_module("intermediate", BertDense(config.hidden_size, config.intermediate_size));
  output_ = register_module("output", BertOutput(config, config.intermediate_size));
}

at::Tensor BertLayerImpl::forward(const at::Tensor& x_BTD, const at::Tensor& mask_B11T) {
  const at::Tensor y_BTD = attention_->forward(x_BTD, mask_B11T);
  return output_->forward(intermediate_->forward(y_BTD), y_BTD);
}

BertEncoderImpl::BertEncoderImpl(const BertConfig& config) {
  layer_ = register_module("layer", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layer_->push_back(BertLayer(config));
}

at::Tensor BertEncoderImpl::forward(at::Tensor x_BTD, const at::Tensor& mask_B11T) {
  for (const auto& layer : *layer_) x_BTD = layer->as<BertLayer>()->forward(x_BTD, mask_B11T);
  return x_BTD;
}

BertBodyImpl::BertBodyImpl(const BertConfig& config) {
  embeddings = register_module("embeddings", BertEmbeddings(config));
  encoder_ = register_module("encoder", BertEncoder(config));
}

at::Tensor BertBodyImpl::forward(const at::Tensor& tokens_BT, const at::Tensor& attention_mask_BT,
                                 const at::Tensor& token_types_BT) {
  return encoder_->forward(embeddings->forward(tokens_BT, token_types_BT), mask_of_keys(attention_mask_BT));
}

BertTransformImpl::BertTransformImpl(const BertConfig& config) {
  dense_ = register_module("dense", linear(config.hidden_size, config.hidden_size));
  norm_ = register_module("LayerNorm", layer_norm(config));
}

at::Tensor BertTransformImpl::forward(const at::Tensor& x_BTD) {
  return norm_->forward(torch::gelu(dense_->forward(x_BTD)));
}

BertPredictionsImpl::BertPredictionsImpl(const BertConfig& config) {
  transform_ = register_module("transform", BertTransform(config));
  bias_ = register_parameter("bias", torch::zeros({config.vocab_size}));
}

at::Tensor BertPredictionsImpl::forward(const at::Tensor& x_BTD, const at::Tensor& word_embeddings_VD) {
  return torch::linear(transform_->forward(x_BTD), word_embeddings_VD, bias_);
}

BertHeadImpl::BertHeadImpl(const BertConfig& config) {
  predictions_ = register_module("predictions", BertPredictions(config));
}

at::Tensor BertHeadImpl::forward(const at::Tensor& x_BTD, const at::Tensor& word_embeddings_VD) {
  return predictions_->forward(x_BTD, word_embeddings_VD);
}

BertImpl::BertImpl(const BertConfig& config) {
  bert_ = register_module("bert", BertBody(config));
  cls_ = register_module("cls", BertHead(config));
}

at::Tensor BertImpl::forward(const at::Tensor& tokens_BT, const at::Tensor& attention_mask_BT,
                             const at::Tensor& token_types_BT) {
  return cls_->forward(bert_->forward(tokens_BT, attention_mask_BT, token_types_BT),
                       bert_->embeddings->word_embeddings->weight);
}

}  // namespace models
