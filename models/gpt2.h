// SPDX-License-Identifier: Apache-2.0
// GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
// Parameters have the names and shapes of Hugging Face's GPT2LMHeadModel, so its files fit:
// Conv1D weights are [in, out], query, key and value are one projection, and the output projection is wte.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"

namespace models {

// y = x · weight + bias, with weight [in, out].
class Conv1DImpl : public torch::nn::Module {
 public:
  Conv1DImpl(std::int64_t in_features, std::int64_t out_features, double weight_std);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(Conv1D);

class Gpt2AttentionImpl : public torch::nn::Module {
 public:
  explicit Gpt2AttentionImpl(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& x_BTD);

 private:
  std::int64_t heads_;
  double dropout_;
  Conv1D c_attn_{nullptr};
  Conv1D c_proj_{nullptr};
  torch::nn::Dropout resid_dropout_{nullptr};
};
TORCH_MODULE(Gpt2Attention);

class Gpt2MlpImpl : public torch::nn::Module {
 public:
  explicit Gpt2MlpImpl(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& x_BTD);

 private:
  Conv1D c_fc_{nullptr};
  Conv1D c_proj_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(Gpt2Mlp);

class Gpt2BlockImpl : public torch::nn::Module {
 public:
  explicit Gpt2BlockImpl(const Gpt2Config& config);
  at::Tensor forward(at::Tensor x_BTD);

 private:
  torch::nn::LayerNorm ln_1_{nullptr};
  Gpt2Attention attn_{nullptr};
  torch::nn::LayerNorm ln_2_{nullptr};
  Gpt2Mlp mlp_{nullptr};
};
TORCH_MODULE(Gpt2Block);

class Gpt2TransformerImpl : public torch::nn::Module {
 public:
  explicit Gpt2TransformerImpl(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& tokens_BT);  // → hidden states [batch, time, n_embd]

  torch::nn::Embedding wte{nullptr};

 private:
  torch::nn::Embedding wpe_{nullptr};
  torch::nn::Dropout drop_{nullptr};
  torch::nn::ModuleList h_{nullptr};
  torch::nn::LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(Gpt2Transformer);

class Gpt2Impl : public torch::nn::Module {
 public:
  explicit Gpt2Impl(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& tokens_BT);  // int64 [batch, time] → logits [batch, time, vocab_size]

 private:
  Gpt2Transformer transformer_{nullptr};
};
TORCH_MODULE(Gpt2);

}  // namespace models
