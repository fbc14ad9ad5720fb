// SPDX-License-Identifier: Apache-2.0
// Llama: Touvron et al., arXiv:2302.13971, and its successors to Llama 3.2 (grouped-query attention, tied
// embeddings, stretched rotary frequencies). Names, shapes and numbers are those of Hugging Face's
// LlamaForCausalLM; the config's names too, what it keeps in rope_parameters with `rope_` before it.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/rms_norm.h"

namespace models {

struct LlamaConfig {
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 32;  // each serves as many query heads
  std::int64_t head_dim = 0;              // 0: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  double rope_factor = 1;  // above 1: Llama 3's stretching, by this much for the longest waves
  double rope_low_freq_factor = 1;
  double rope_high_freq_factor = 4;
  std::int64_t rope_original_max_position_embeddings = 8192;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  double attention_dropout = 0;

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

// Width of a head.
std::int64_t head_dim(const LlamaConfig& config);

// The turn of each position and pair of a head's numbers, as two tables [time, head_dim].
struct Rotation {
  at::Tensor cos_TK;
  at::Tensor sin_TK;
};

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD, const Rotation& rotation);

 private:
  std::int64_t heads_;
  std::int64_t key_heads_;
  double dropout_;
  torch::nn::Linear q_proj_{nullptr};
  torch::nn::Linear k_proj_{nullptr};
  torch::nn::Linear v_proj_{nullptr};
  torch::nn::Linear o_proj_{nullptr};
};
TORCH_MODULE(LlamaAttention);

class LlamaMlpImpl : public torch::nn::Module {
 public:
  explicit LlamaMlpImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x_BTD);

 private:
  torch::nn::Linear gate_proj_{nullptr};
  torch::nn::Linear up_proj_{nullptr};
  torch::nn::Linear down_proj_{nullptr};
};
TORCH_MODULE(LlamaMlp);

class LlamaBlockImpl : public torch::nn::Module {
 public:
  explicit LlamaBlockImpl(const LlamaConfig& config);
  at::Tensor forward(at::Tensor x_BTD, const Rotation& rotation);

 private:
  LlamaAttention self_attn_{nullptr};
  LlamaMlp mlp_{nullptr};
  RmsNorm input_layernorm_{nullptr};
  RmsNorm post_attention_layernorm_{nullptr};
};
TORCH_MODULE(LlamaBlock);

class LlamaDecoderImpl : public torch::nn::Module {
 public:
  explicit LlamaDecoderImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& tokens_BT);  // → hidden states [batch, time, hidden_size]

  torch::nn::Embedding embed_tokens{nullptr};

 private:
  LlamaConfig config_;
  torch::nn::ModuleList layers_{nullptr};
  RmsNorm norm_{nullptr};
};
TORCH_MODULE(LlamaDecoder);

class LlamaImpl : public torch::nn::Module {
 public:
  explicit LlamaImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& tokens_BT);  // int64 [batch, time] → logits [batch, time, vocab_size]

 private:
  LlamaDecoder model_{nullptr};
  torch::nn::Linear lm_head_{nullptr};  // null where it is the embedding
};
TORCH_MODULE(Llama);

}  // namespace models
