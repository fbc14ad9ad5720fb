// SPDX-License-Identifier: Apache-2.0
// T5: Raffel et al., arXiv:1910.10683, and its successor 1.1 (gated GELU, an output of its own). Names and
// shapes are those of Hugging Face's T5ForConditionalGeneration.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"
#include "models/rms_norm.h"

namespace models {

// Scores are not divided by √d_kv: the initial weights of `q` are that much smaller.
class T5AttentionImpl : public torch::nn::Module {
 public:
  // `bidirectional` matters to the relative positions alone, which only a stack's first self-attention has.
  T5AttentionImpl(const T5Config& config, bool has_positions, bool bidirectional);
  // Of x over `memory`; `bias` is added to the scores.
  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& memory_BSD, const at::Tensor& bias_BHTS);
  at::Tensor position_bias(std::int64_t queries, std::int64_t keys);  // [1, heads, queries, keys]

 private:
  std::int64_t heads_;
  std::int64_t max_distance_;
  bool bidirectional_;
  double dropout_;
  torch::nn::Linear q_{nullptr};
  torch::nn::Linear k_{nullptr};
  torch::nn::Linear v_{nullptr};
  torch::nn::Linear o_{nullptr};
  torch::nn::Embedding relative_attention_bias_{nullptr};
};
TORCH_MODULE(T5Attention);

class T5SelfAttentionImpl : public torch::nn::Module {
 public:
  T5SelfAttentionImpl(const T5Config& config, bool has_positions, bool bidirectional);
  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& bias_BHTT);

  T5Attention attention{nullptr};

 private:
  RmsNorm layer_norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(T5SelfAttention);

class T5CrossAttentionImpl : public torch::nn::Module {
 public:
  explicit T5CrossAttentionImpl(const T5Config& config);
  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& memory_BSD, const at::Tensor& mask_B11S);

 private:
  T5Attention attention_{nullptr};
  RmsNorm layer_norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(T5CrossAttention);

class T5DenseImpl : public torch::nn::Module {
 public:
  explicit T5DenseImpl(const T5Config& config);
  at::Tensor forward(const at::Tensor& x_BTD);

 private:
  torch::nn::Linear wi_{nullptr};  // or the two below
  torch::nn::Linear wi_0_{nullptr};
  torch::nn::Linear wi_1_{nullptr};
  torch::nn::Linear wo_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(T5Dense);

class T5FeedForwardImpl : public torch::nn::Module {
 public:
  explicit T5FeedForwardImpl(const T5Config& config);
  at::Tensor forward(const at::Tensor& x_BTD);

 private:
  T5Dense dense_{nullptr};
  RmsNorm layer_norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(T5FeedForward);

enum class T5Side { Encoder, Decoder };

class T5BlockImpl : public torch::nn::Module {
 public:
  T5BlockImpl(const T5Config& config, T5Side side, bool has_positions);
  // Undefined memory: an encoder's block.
  at::Tensor forward(at::Tensor x_BTD, const at::Tensor& bias_BHTT, const at::Tensor& memory_BSD,
                     const at::Tensor& memory_mask_B11S);
  T5Attention& self_attention() { return self_attention_->attention; }

 private:
  T5SelfAttention self_attention_{nullptr};
  T5CrossAttention cross_attention_{nullptr};  // null in an encoder
  T5FeedForward feed_forward_{nullptr};
};
TORCH_MODULE(T5Block);

class T5StackImpl : public torch::nn::Module {
 public:
  T5StackImpl(const T5Config& config, T5Side side);
  at::Tensor forward(at::Tensor x_BTD, const at::Tensor& mask_B11T, const at::Tensor& memory_BSD = {},
                     const at::Tensor& memory_mask_B11S = {});

 private:
  T5Side side_;
  torch::nn::ModuleList block_{nullptr};
  RmsNorm final_layer_norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(T5Stack);

class T5Impl : public torch::nn::Module {
 public:
  explicit T5Impl(const T5Config& config);
  // int64 tokens [batch, source] and [batch, target] → logits [batch, target, vocab_size]. The decoder's are
  // the targets moved by one, behind a padding token (0). Where attention_mask is 0 a source token is
  // padding.
  at::Tensor forward(const at::Tensor& tokens_BS, const at::Tensor& decoder_tokens_BT,
                     const at::Tensor& attention_mask_BS = {});

 protected:
  FORWARD_HAS_DEFAULT_ARGS({2, torch::nn::AnyValue(at::Tensor())})

 private:
  T5Config config_;
  torch::nn::Embedding shared_{nullptr};
  T5Stack encoder_{nullptr};
  T5Stack decoder_{nullptr};
  torch::nn::Linear lm_head_{nullptr};  // null where it is the embedding
};
TORCH_MODULE(T5);

}  // namespace models
