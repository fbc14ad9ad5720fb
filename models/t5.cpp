// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, T target or own time, S source time, D d_model, H heads, K width of a head.
#include "models/t5.h"

#include <torch/nn/functional.h>
#include <torch/nn/init.h>

#include <cmath>
#include <limits>

#include "models/attention.h"
#include "models/linear.h"

namespace models {

static torch::nn::Linear projection(std::int64_t in_features, std::int64_t out_features, double weight_std) {
  return linear(in_features, out_features, weight_std, /*bias=*/false);
}

static double inverse_root(std::int64_t number) { return 1 / std::sqrt(static_cast<double>(number)); }

static RmsNorm layer_norm(const T5Config& config) {
  return RmsNorm(config.d_model, config.layer_norm_epsilon);
}

// Which of `num_buckets` a key's place relative to the query's falls into: each near one has its own, farther
// ones share, by the logarithm of the distance, all beyond `max_distance` the last. Half of them are for keys
// behind the query, if it sees those at all.
static at::Tensor buckets_of(const at::Tensor& relative, bool bidirectional, std::int64_t num_buckets,
                             std::int64_t max_distance) {
  at::Tensor first = at::zeros_like(relative);
  if (bidirectional) {
    num_buckets /= 2;
    first = (relative > 0).to(at::kLong) * num_buckets;
  }
  const at::Tensor distance = bidirectional ? relative.abs() : (-relative).clamp_min(0);
  const std::int64_t num_exact = num_buckets / 2;
  const double octaves = std::log(static_cast<double>(max_distance) / static_cast<double>(num_exact));
  const at::Tensor share = (distance.to(at::kFloat) / static_cast<double>(num_exact)).log() / octaves;
  const at::Tensor far =
      num_exact + (share * static_cast<double>(num_buckets - num_exact)).clamp_min(0).to(at::kLong);
  return first + at::where(distance < num_exact, distance, far.clamp_max(num_buckets - 1));
}

T5AttentionImpl::T5AttentionImpl(const T5Config& config, bool has_positions, bool bidirectional)
    : heads_(config.num_heads),
      max_distance_(config.relative_attention_max_distance),
      bidirectional_(bidirectional),
      dropout_(config.dropout_rate) {
  const std::int64_t inner = config.num_heads * config.d_kv;
  const double std = inverse_root(config.d_model);
  q_ = register_module("q", projection(config.d_model, inner, std * inverse_root(config.d_kv)));
  k_ = register_module("k", projection(config.d_model, inner, std));
  v_ = register_module("v", projection(config.d_model, inner, std));
  o_ = register_module("o", projection(inner, config.d_model, inverse_root(inner)));
  if (!has_positions) return;
  relative_attention_bias_ =
      register_module("relative_attention_bias",
                      torch::nn::Embedding(config.relative_attention_num_buckets, config.num_heads));
  torch::nn::init::normal_(relative_attention_bias_->weight, 0, std);
}

at::Tensor T5AttentionImpl::position_bias(std::int64_t queries, std::int64_t keys) {
  const at::Tensor& table = relative_attention_bias_->weight;
  const auto options = at::TensorOptions().dtype(at::kLong).device(table.device());
  const at::Tensor relative_TS =
      at::arange(keys, options).unsqueeze(0) - at::arange(queries, options).unsqueeze(1);
  const at::Tensor buckets_TS = buckets_of(relative_TS, bidirectional_, table.size(0), max_distance_);
  return relative_attention_bias_->forward(buckets_TS).permute({2, 0, 1}).unsqueeze(0);
}

at::Tensor T5AttentionImpl::forward(const at::Tensor& x_BTD, const at::Tensor& memory_BSD,
                                    const at::Tensor& bias_BHTS) {
  const at::Tensor q_BHTK = by_head(q_->forward(x_BTD), heads_);
  const at::Tensor k_BHSK = by_head(k_->forward(memory_BSD), heads_);
  const at::Tensor v_BHSK = by_head(v_->forward(memory_BSD), heads_);
  at::Tensor scores_BHTS = at::matmul(q_BHTK, k_BHSK.transpose(2, 3));
  if (bias_BHTS.defined()) scores_BHTS = scores_BHTS + bias_BHTS;
  const at::Tensor weights_BHTS = at::dropout(at::softmax(scores_BHTS, -1), dropout_, is_training());
  return o_->forward(joined(at::matmul(weights_BHTS, v_BHSK)));
}

T5SelfAttentionImpl::T5SelfAttentionImpl(const T5Config& config, bool has_positions, bool bidirectional) {
  attention = register_module("SelfAttention", T5Attention(config, has_positions, bidirectional));
  layer_norm_ = register_module("layer_norm", layer_norm(config));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.dropout_rate));
}

at::Tensor T5SelfAttentionImpl::forward(const at::Tensor& x_BTD, const at::Tensor& bias_BHTT) {
  const at::Tensor y_BTD = layer_norm_->forward(x_BTD);
  return x_BTD + dropout_->forward(attention->forward(y_BTD, y_BTD, bias_BHTT));
}

T5CrossAttentionImpl::T5CrossAttentionImpl(const T5Config& config) {
  attention_ = register_module("EncDecAttention",
                               T5Attention(config, /*has_positions=*/false, /*bidirectional=*/true));
  layer_norm_ = register_module("layer_norm", layer_norm(config));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.dropout_rate));
}

at::Tensor T5CrossAttentionImpl::forward(const at::Tensor& x_BTD, const at::Tensor& memory_BSD,
                                         const at::Tensor& mask_B11S) {
  return x_BTD + dropout_->forward(attention_->forward(layer_norm_->forward(x_BTD), memory_BSD, mask_B11S));
}

T5DenseImpl::T5DenseImpl(const T5Config& config) {
  const double std = inverse_root(config.d_model);
  if (config.is_gated_act) {
    wi_0_ = register_module("wi_0", projection(config.d_model, config.d_ff, std));
    wi_1_ = register_module("wi_1", projection(config.d_model, config.d_ff, std));
  } else {
    wi_ = register_module("wi", projection(config.d_model, config.d_ff, std));
  }
  wo_ = register_module("wo", projection(config.d_ff, config.d_model, inverse_root(config.d_ff)));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.dropout_rate));
}

at::Tensor T5DenseImpl::forward(const at::Tensor& x_BTD) {
  const at::Tensor y = wi_.is_empty() ? torch::gelu(wi_0_->forward(x_BTD), "tanh") * wi_1_->forward(x_BTD)
                                      : torch::relu(wi_->forward(x_BTD));
  return wo_->forward(dropout_->forward(y));
}

T5FeedForwardImpl::T5FeedForwardImpl(const T5Config& config) {
  dense_ = register_module("DenseReluDense", T5Dense(config));
  layer_norm_ = register_module("layer_norm", layer_norm(config));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.dropout_rate));
}

at::Tensor T5FeedForwardImpl::forward(const at::Tensor& x_BTD) {
  return x_BTD + dropout_->forward(dense_->forward(layer_norm_->forward(x_BTD)));
}

T5BlockImpl::T5BlockImpl(const T5Config& config, T5Side side, bool has_positions) {
  torch::nn::ModuleList layers;
  self_attention_ = T5SelfAttention(config, has_positions, /*bidirectional=*/side == T5Side::Encoder);
  layers->push_back(self_attention_);
  if (side == T5Side::Decoder) {
    cross_attention_ = T5CrossAttention(config);
    layers->push_back(cross_attention_);
  }
  feed_forward_ = T5FeedForward(config);
  layers->push_back(feed_forward_);
  register_module("layer", layers);
}

at::Tensor T5BlockImpl::forward(at::Tensor x_BTD, const at::Tensor& bias_BHTT, const at::Tensor& memory_BSD,
                                const at::Tensor& memory_mask_B11S) {
  x_BTD = self_attention_->forward(x_BTD, bias_BHTT);
  if (!cross_attention_.is_empty()) x_BTD = cross_attention_->forward(x_BTD, memory_BSD, memory_mask_B11S);
  return feed_forward_->forward(x_BTD);
}

T5StackImpl::T5StackImpl(const T5Config& config, T5Side side) : side_(side) {
  block_ = register_module("block", torch::nn::ModuleList());
  const std::int64_t layers = side == T5Side::Encoder ? config.num_layers : config.num_decoder_layers;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    block_->push_back(T5Block(config, side, /*has_positions=*/layer == 0));
  final_layer_norm_ = register_module("final_layer_norm", layer_norm(config));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.dropout_rate));
}

at::Tensor T5StackImpl::forward(at::Tensor x_BTD, const at::Tensor& mask_B11T, const at::Tensor& memory_BSD,
                                const at::Tensor& memory_mask_B11S) {
  const std::int64_t time = x_BTD.size(1);
  at::Tensor bias_BHTT = block_->ptr(0)->as<T5Block>()->self_attention()->position_bias(time, time);
  if (side_ == T5Side::Decoder) {
    const double never = -std::numeric_limits<double>::infinity();
    bias_BHTT = bias_BHTT + at::full({time, time}, never, bias_BHTT.options().requires_grad(false)).triu(1);
  }
  if (mask_B11T.defined()) bias_BHTT = bias_BHTT + mask_B11T;
  x_BTD = dropout_->forward(x_BTD);
  for (const auto& block : *block_)
    x_BTD = block->as<T5Block>()->forward(x_BTD, bias_BHTT, memory_BSD, memory_mask_B11S);
  return dropout_->forward(final_layer_norm_->forward(x_BTD));
}

T5Impl::T5Impl(const T5Config& config) : config_(config) {
  shared_ = register_module("shared", torch::nn::Embedding(config.vocab_size, config.d_model));
  torch::nn::init::normal_(shared_->weight, 0, 1);
  encoder_ = register_module("encoder", T5Stack(config, T5Side::Encoder));
  decoder_ = register_module("decoder", T5Stack(config, T5Side::Decoder));
  if (!config.tie_word_embeddings)
    lm_head_ = register_module("lm_head", projection(config.d_model, config.vocab_size, 1));
}

// What is added to the scores: 0 where a key counts, and so little elsewhere that its weight is 0.
static at::Tensor added_mask(const at::Tensor& attention_mask_BS, const at::Tensor& like) {
  const at::Tensor mask_B11S = mask_of_keys(attention_mask_BS);
  if (!mask_B11S.defined()) return {};
  const double lowest = like.scalar_type() == at::kDouble ? std::numeric_limits<double>::lowest()
                                                          : std::numeric_limits<float>::lowest();
  return at::zeros_like(mask_B11S, like.options().requires_grad(false)).masked_fill(~mask_B11S, lowest);
}

at::Tensor T5Impl::forward(const at::Tensor& tokens_BS, const at::Tensor& decoder_tokens_BT,
                           const at::Tensor& attention_mask_BS) {
  const at::Tensor mask_B11S = added_mask(attention_mask_BS, shared_->weight);
  const at::Tensor memory_BSD = encoder_->forward(shared_->forward(tokens_BS), mask_B11S);
  at::Tensor x_BTD = decoder_->forward(shared_->forward(decoder_tokens_BT), {}, memory_BSD, mask_B11S);
  if (config_.scale_decoder_outputs) x_BTD = x_BTD * inverse_root(config_.d_model);
  return torch::linear(x_BTD, lm_head_.is_empty() ? shared_->weight : lm_head_->weight);
}

}  // namespace models
