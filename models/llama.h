// SPDX-License-Identifier: Apache-2.0
// Llama: Touvron et al., arXiv:2302.13971, and its successors to Llama 3.2 (grouped-query attention, tied
// embeddings, stretched rotary frequencies). Names, shapes and numbers are those of Hugging Face's
// LlamaForCausalLM; the config's names too, what it keeps in rope_parameters with `rope_` before it.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"
#include "models/rms_norm.h"

namespace models {

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
