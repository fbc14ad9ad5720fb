// SPDX-License-Identifier: Apache-2.0
// Small models of every family, with batches for them: dropout, ignored targets, padding, batch norm, tied
// weights, and sizes that divide by few numbers.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn.h>

#include <functional>
#include <memory>
#include <vector>

#include "models/models.h"
#include "shoal/train/batch.h"

namespace shoal::cases {

using at::Tensor;

struct Net {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Batch&)> loss;
};

// The same weights each time it is made.
struct ModelCase {
  const char* name;
  std::function<Net(double dropout)> make;
  std::function<Batch(at::ScalarType)> batch;
};

// Moves every parameter off its initial value. With zero biases GPT-2's key bias, whose true gradient is
// zero, stays at rounding noise, which Adam divides by its own size: no two implementations would agree on
// it.
inline void randomise(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.add_(at::randn_like(parameter), 0.02);
}

inline Net mlp(double dropout) {
  torch::manual_seed(5);
  models::Mlp net(
      models::MlpConfig{.in_features = 12, .hidden = {16, 16}, .out_features = 5, .dropout = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]), batch[1]);
          }};
}

inline Net gpt2(double dropout) {
  torch::manual_seed(5);
  models::Gpt2 net(models::Gpt2Config{.vocab_size = 61,
                                      .n_positions = 16,
                                      .n_embd = 32,
                                      .n_layer = 2,
                                      .n_head = 4,
                                      .embd_pdrop = dropout,
                                      .attn_pdrop = dropout,
                                      .resid_pdrop = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]).flatten(0, 1), batch[1].tensor().flatten());
          }};
}

inline Net resnet(double) {
  torch::manual_seed(5);
  models::Resnet net(
      models::ResnetConfig{.layers = {1, 1, 1, 1}, .width = 8, .in_channels = 3, .num_classes = 7});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]), batch[1]);
          }};
}

inline Net llama(double dropout) {
  torch::manual_seed(5);
  models::Llama net(models::LlamaConfig{.vocab_size = 61,
                                        .hidden_size = 24,
                                        .intermediate_size = 40,
                                        .num_hidden_layers = 2,
                                        .num_attention_heads = 4,
                                        .num_key_value_heads = 2,
                                        .head_dim = 8,
                                        .max_position_embeddings = 16,
                                        .rope_factor = 2,
                                        .rope_original_max_position_embeddings = 16,
                                        .attention_dropout = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]).flatten(0, 1), batch[1].tensor().flatten());
          }};
}

inline Net bert(double dropout) {
  torch::manual_seed(5);
  models::Bert net(models::BertConfig{.vocab_size = 61,
                                      .hidden_size = 24,
                                      .num_hidden_layers = 2,
                                      .num_attention_heads = 4,
                                      .intermediate_size = 40,
                                      .max_position_embeddings = 16,
                                      .hidden_dropout_prob = dropout,
                                      .attention_probs_dropout_prob = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0], batch[2], batch[3]).flatten(0, 1),
                                          batch[1].tensor().flatten());
          }};
}

inline Net t5(double dropout) {
  torch::manual_seed(5);
  models::T5 net(models::T5Config{.vocab_size = 61,
                                  .d_model = 24,
                                  .d_kv = 6,
                                  .d_ff = 40,
                                  .num_layers = 2,
                                  .num_decoder_layers = 2,
                                  .num_heads = 4,
                                  .relative_attention_num_buckets = 8,
                                  .relative_attention_max_distance = 12,
                                  .dropout_rate = dropout});
  randomise(*net);
  return {
      net.ptr(), [net](const Batch& batch) mutable {
        const Tensor labels = batch[1].tensor().slice(1, 0, 11);
        return at::cross_entropy_loss(
            net->forward(batch[0], batch[1].tensor().slice(1, 3, 14).clamp_min(0), batch[2]).flatten(0, 1),
            labels.flatten());
      }};
}

inline Net vit(double dropout) {
  torch::manual_seed(5);
  models::Vit net(models::VitConfig{.image_size = 8,
                                    .patch_size = 4,
                                    .num_channels = 2,
                                    .hidden_size = 24,
                                    .num_hidden_layers = 2,
                                    .num_attention_heads = 4,
                                    .intermediate_size = 40,
                                    .num_classes = 7,
                                    .hidden_dropout_prob = dropout,
                                    .attention_probs_dropout_prob = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]), batch[1]);
          }};
}

inline Net lstm(double dropout) {
  torch::manual_seed(5);
  models::Lstm net(models::LstmConfig{
      .vocab_size = 61, .embedding_size = 12, .hidden_size = 20, .num_layers = 2, .dropout = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]).flatten(0, 1), batch[1].tensor().flatten());
          }};
}

inline Net dlrm(double) {
  torch::manual_seed(5);
  models::Dlrm net(models::DlrmConfig{
      .dense_features = 5, .table_rows = {7, 30, 4}, .embedding_dim = 6, .bottom = {10}, .top = {12, 8}});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::binary_cross_entropy_with_logits(net->forward(batch[0], batch[1]), batch[2]);
          }};
}

inline Batch labelled_tokens() {
  auto labels = at::randint(61, {3, 16}, at::kLong);
  labels.index_put_({0, at::indexing::Slice(4, 9)}, -100);  // ignored targets
  return {at::randint(61, {3, 16}, at::kLong), labels};
}

// With a mask of what is padding, and token types.
inline Batch padded_tokens() {
  const Batch labelled = labelled_tokens();
  auto mask = at::ones({3, 16}, at::kLong);
  mask.index_put_({1, at::indexing::Slice(11)}, 0);
  return {labelled[0].tensor(), labelled[1].tensor(), mask, at::randint(2, {3, 16}, at::kLong)};
}

inline const std::vector<ModelCase> kModels = {
    {"bert", bert, [](at::ScalarType) { return padded_tokens(); }},
    {"dlrm", dlrm,
     [](at::ScalarType type) {
       return Batch{at::randn({6, 5}, type), at::randint(4, {6, 3}, at::kLong), at::rand({6}, type).round()};
     }},
    {"llama", llama, [](at::ScalarType) { return labelled_tokens(); }},
    {"lstm", lstm, [](at::ScalarType) { return labelled_tokens(); }},
    {"mlp", mlp,
     [](at::ScalarType type) { return Batch{at::randn({6, 12}, type), at::randint(5, {6}, at::kLong)}; }},
    {"gpt2", gpt2, [](at::ScalarType) { return labelled_tokens(); }},
    {"resnet", resnet,
     [](at::ScalarType type) {
       return Batch{at::randn({4, 3, 32, 32}, type), at::randint(7, {4}, at::kLong)};
     }},
    {"t5", t5, [](at::ScalarType) { return padded_tokens(); }},
    {"vit", vit,
     [](at::ScalarType type) {
       return Batch{at::randn({4, 2, 8, 8}, type), at::randint(7, {4}, at::kLong)};
     }},
};

}  // namespace shoal::cases
