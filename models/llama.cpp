// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, T time, D hidden_size, H heads, G heads of keys and values, K width of a head.
#include "models/llama.h"

#include <torch/nn/init.h>

#include <cmath>
#include <numbers>

#include "models/attention.h"
#include "models/linear.h"

namespace models {

// One frequency a pair of numbers. Llama 3 leaves short waves as they are, slows waves longer than the
// context it was first trained on down by `rope_factor`, and goes from one to the other between the two
// factors.
static at::Tensor frequencies(const LlamaConfig& config, const at::TensorOptions& options) {
  const std::int64_t width = head_dim(config);
  const at::Tensor exponents = torch::arange(0, width, 2, options) / static_cast<double>(width);
  const at::Tensor plain = 1.0 / at::pow(config.rope_theta, exponents);
  if (config.rope_factor <= 1) return plain;
  const auto context = static_cast<double>(config.rope_original_max_position_embeddings);
  const at::Tensor wave = 2 * std::numbers::pi / plain;
  const at::Tensor slowed =
      at::where(wave > context / config.rope_low_freq_factor, plain / config.rope_factor, plain);
  const at::Tensor share = (context / wave - config.rope_low_freq_factor) /
                           (config.rope_high_freq_factor - config.rope_low_freq_factor);
  const at::Tensor between = (1 - share) * slowed / config.rope_factor + share * slowed;
  const at::Tensor is_between = (wave >= context / config.rope_high_freq_factor)
                                    .logical_and(wave <= context / config.rope_low_freq_factor);
  return at::where(is_between, between, slowed);
}

// In float32 whatever the model computes in, as Hugging Face does.
static Rotation rotation_of(const LlamaConfig& config, std::int64_t time, const at::TensorOptions& like) {
  const auto options = like.dtype(at::kFloat);
  const at::Tensor angles =
      torch::arange(time, options).unsqueeze(1) * frequencies(config, options).unsqueeze(0);
  const at::Tensor both_TK = at::cat({angles, angles}, 1);
  return {both_TK.cos().to(like.dtype()), both_TK.sin().to(like.dtype())};
}

// Number i of a head and number i + K/2 are the pair that is turned.
static at::Tensor rotated(const at::Tensor& x_BHTK, const Rotation& rotation) {
  const std::vector<at::Tensor> halves = x_BHTK.chunk(2, -1);
  return x_BHTK * rotation.cos_TK + at::cat({-halves[1], halves[0]}, -1) * rotation.sin_TK;
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config)
    : heads_(config.num_attention_heads),
      key_heads_(config.num_key_value_heads),
      dropout_(config.attention_dropout) {
  TORCH_CHECK(config.head_dim > 0 || config.hidden_size % heads_ == 0, "llama: hidden_size is ",
              config.hidden_size, ", not a multiple of num_attention_heads ", heads_);
  TORCH_CHECK(heads_ % key_heads_ == 0, "llama: num_attention_heads is ", heads_,
              ", not a multiple of num_key_value_heads ", key_heads_);
  const std::int64_t width = head_dim(config);
  TORCH_CHECK(width % 2 == 0, "llama: a head has ", width, " numbers; rotary embeddings turn them in pairs");
  const auto projection = [&](const char* name, std::int64_t from, std::int64_t to) {
    return register_module(name, linear(from, to, kInitStd, config.attention_bias));
  };
  q_proj_ = projection("q_proj", config.hidden_size, heads_ * width);
  k_proj_ = projection("k_proj", config.hidden_size, key_heads_ * width);
  v_proj_ = projection("v_proj", config.hidden_size, key_heads_ * width);
  o_proj_ = projection("o_proj", heads_ * width, config.hidden_size);
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x_BTD, const Rotation& rotation) {
  // BGTK → BHTK: query heads that stand together share a head of keys and values.
  const auto for_each_query = [&](const at::Tensor& x_BGTK) {
    if (heads_ == key_heads_) return x_BGTK;
    return x_BGTK.unsqueeze(2).expand({-1, -1, heads_ / key_heads_, -1, -1}).flatten(1, 2);
  };
  const at::Tensor q_BHTK = rotated(by_head(q_proj_->forward(x_BTD), heads_), rotation);
  const at::Tensor k_BGTK = rotated(by_head(k_proj_->forward(x_BTD), key_heads_), rotation);
  const at::Tensor v_BGTK = by_head(v_proj_->forward(x_BTD), key_heads_);
  const at::Tensor y_BHTK =
      at::scaled_dot_product_attention(q_BHTK, for_each_query(k_BGTK), for_each_query(v_BGTK), {},
                                       is_training() ? dropout_ : 0.0, /*is_causal=*/true);
  return o_proj_->forward(joined(y_BHTK));
}

LlamaMlpImpl::LlamaMlpImpl(const LlamaConfig& config) {
  const bool bias = config.mlp_bias;
  gate_proj_ =
      register_module("gate_proj", linear(config.hidden_size, config.intermediate_size, kInitStd, bias));
  up_proj_ = register_module("up_proj", linear(config.hidden_size, config.intermediate_size, kInitStd, bias));
  down_proj_ =
      register_module("down_proj", linear(config.intermediate_size, config.hidden_size, kInitStd, bias));
}

at::Tensor LlamaMlpImpl::forward(const at::Tensor& x_BTD) {
  return down_proj_->forward(torch::silu(gate_proj_->forward(x_BTD)) * up_proj_->forward(x_BTD));
}

LlamaBlockImpl::LlamaBlockImpl(const LlamaConfig& config) {
  self_attn_ = register_module("self_attn", LlamaAttention(config));
  mlp_ = register_module("mlp", LlamaMlp(config));
  input_layernorm_ = register_module("input_layernorm", RmsNorm(config.hidden_size, config.rms_norm_eps));
  post_attention_layernorm_ =
      register_module("post_attention_layernorm", RmsNorm(config.hidden_size, config.rms_norm_eps));
}

at::Tensor LlamaBlockImpl::forward(at::Tensor x_BTD, const Rotation& rotation) {
  x_BTD = x_BTD + self_attn_->forward(input_layernorm_->forward(x_BTD), rotation);
  return x_BTD + mlp_->forward(post_attention_layernorm_->forward(x_BTD));
}

LlamaDecoderImpl::LlamaDecoderImpl(const LlamaConfig& config) : config_(config) {
  embed_tokens = register_module("embed_tokens", torch::nn::Embedding(config.vocab_size, config.hidden_size));
  torch::nn::init::normal_(embed_tokens->weight, 0, kInitStd);
  layers_ = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layers_->push_back(LlamaBlock(config));
  norm_ = register_module("norm", RmsNorm(config.hidden_size, config.rms_norm_eps));
}

at::Tensor LlamaDecoderImpl::forward(const at::Tensor& tokens_BT) {
  const std::int64_t time = tokens_BT.size(1);
  TORCH_CHECK(time <= config_.max_position_embeddings, "llama: ", time,
              " tokens in a row, but max_position_embeddings is ", config_.max_position_embeddings);
  at::Tensor x_BTD = embed_tokens->forward(tokens_BT);
  const Rotation rotation = rotation_of(config_, time, x_BTD.options().requires_grad(false));
  for (const auto& layer : *layers_) x_BTD = layer->as<LlamaBlock>()->forward(x_BTD, rotation);
  return norm_->forward(x_BTD);
}

LlamaImpl::LlamaImpl(const LlamaConfig& config) {
  model_ = register_module("model", LlamaDecoder(config));
  if (!config.tie_word_embeddings)
    lm_head_ =
        register_module("lm_head", linear(config.hidden_size, config.vocab_size, kInitStd, /*bias=*/false));
}

at::Tensor LlamaImpl::forward(const at::Tensor& tokens_BT) {
  const at::Tensor x_BTD = model_->forward(tokens_BT);
  return torch::linear(x_BTD, lm_head_.is_empty() ? model_->embed_tokens->weight : lm_head_->weight);
}

}  // namespace models
