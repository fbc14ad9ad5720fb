// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, T time, D n_embd, H heads, K width of a head, V vocabulary.
#include "models/gpt2.h"

#include <torch/nn/functional.h>
#include <torch/nn/init.h>

#include <cmath>

#include "models/linear.h"

namespace models {

// Projections that add to the residual stream start smaller, by the number of them.
static double residual_std(const Gpt2Config& config) {
  return kInitStd / std::sqrt(2.0 * static_cast<double>(config.n_layer));
}

static torch::nn::LayerNorm layer_norm(const Gpt2Config& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.n_embd}).eps(config.layer_norm_epsilon));
}

Conv1DImpl::Conv1DImpl(std::int64_t in_features, std::int64_t out_features, double weight_std) {
  weight = register_parameter("weight", torch::empty({in_features, out_features}));
  bias = register_parameter("bias", torch::zeros({out_features}));
  torch::nn::init::normal_(weight, 0, weight_std);
}

at::Tensor Conv1DImpl::forward(const at::Tensor& x) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(1);
  return torch::addmm(bias, x.view({-1, x.size(-1)}), weight).view(shape);
}

Gpt2AttentionImpl::Gpt2AttentionImpl(const Gpt2Config& config)
    : heads_(config.n_head), dropout_(config.attn_pdrop) {
  TORCH_CHECK(config.n_embd % config.n_head == 0, "gpt2: n_embd is ", config.n_embd,
              ", not a multiple of n_head ", config.n_head);
  c_attn_ = register_module("c_attn", Conv1D(config.n_embd, 3 * config.n_embd, kInitStd));
  c_proj_ = register_module("c_proj", Conv1D(config.n_embd, config.n_embd, residual_std(config)));
  resid_dropout_ = register_module("resid_dropout", torch::nn::Dropout(config.resid_pdrop));
}

at::Tensor Gpt2AttentionImpl::forward(const at::Tensor& x_BTD) {
  const std::int64_t batch = x_BTD.size(0);
  const std::int64_t time = x_BTD.size(1);
  const std::int64_t width = x_BTD.size(2);
  const auto by_head = [&](const at::Tensor& y_BTD) {
    return y_BTD.view({batch, time, heads_, width / heads_}).transpose(1, 2);
  };
  const std::vector<at::Tensor> qkv = c_attn_->forward(x_BTD).split(width, 2);
  const at::Tensor y_BHTK =
      at::scaled_dot_product_attention(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2]), {},
                                       is_training() ? dropout_ : 0.0, /*is_causal=*/true);
  const at::Tensor y_BTD = y_BHTK.transpose(1, 2).contiguous().view({batch, time, width});
  return resid_dropout_->forward(c_proj_->forward(y_BTD));
}

Gpt2MlpImpl::Gpt2MlpImpl(const Gpt2Config& config) {
  c_fc_ = register_module("c_fc", Conv1D(config.n_embd, 4 * config.n_embd, kInitStd));
  c_proj_ = register_module("c_proj", Conv1D(4 * config.n_embd, config.n_embd, residual_std(config)));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.resid_pdrop));
}

at::Tensor Gpt2MlpImpl::forward(const at::Tensor& x_BTD) {
  return dropout_->forward(c_proj_->forward(torch::gelu(c_fc_->forward(x_BTD), "tanh")));
}

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Config& config) {
  ln_1_ = register_module("ln_1", layer_norm(config));
  attn_ = register_module("attn", Gpt2Attention(config));
  ln_2_ = register_module("ln_2", layer_norm(config));
  mlp_ = register_module("mlp", Gpt2Mlp(config));
}

at::Tensor Gpt2BlockImpl::forward(at::Tensor x_BTD) {
  x_BTD = x_BTD + attn_->forward(ln_1_->forward(x_BTD));
  return x_BTD + mlp_->forward(ln_2_->forward(x_BTD));
}

Gpt2TransformerImpl::Gpt2TransformerImpl(const Gpt2Config& config) {
  wte = register_module("wte", torch::nn::Embedding(config.vocab_size, config.n_embd));
  wpe_ = register_module("wpe", torch::nn::Embedding(config.n_positions, config.n_embd));
  drop_ = register_module("drop", torch::nn::Dropout(config.embd_pdrop));
  h_ = register_module("h", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) h_->push_back(Gpt2Block(config));
  ln_f_ = register_module("ln_f", layer_norm(config));
  torch::nn::init::normal_(wte->weight, 0, kInitStd);
  torch::nn::init::normal_(wpe_->weight, 0, kInitStd);
}

at::Tensor Gpt2TransformerImpl::forward(const at::Tensor& tokens_BT) {
  const std::int64_t time = tokens_BT.size(1);
  TORCH_CHECK(time <= wpe_->weight.size(0), "gpt2: ", time, " tokens in a row, but n_positions is ",
              wpe_->weight.size(0));
  const at::Tensor positions_T = torch::arange(time, tokens_BT.options().dtype(torch::kLong));
  at::Tensor x_BTD = drop_->forward(wte->forward(tokens_BT) + wpe_->forward(positions_T));
  for (const auto& block : *h_) x_BTD = block->as<Gpt2Block>()->forward(x_BTD);
  return ln_f_->forward(x_BTD);
}

Gpt2Impl::Gpt2Impl(const Gpt2Config& config) {
  transformer_ = register_module("transformer", Gpt2Transformer(config));
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens_BT) {
  return torch::linear(transformer_->forward(tokens_BT), transformer_->wte->weight);
}

}  // namespace models
