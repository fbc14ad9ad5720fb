// SPDX-License-Identifier: Apache-2.0
// What each model is made of, in numbers, and the sizes that papers gave them. No LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

namespace models {

struct BertConfig {
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double layer_norm_eps = 1e-12;

  friend bool operator==(const BertConfig&, const BertConfig&) = default;
};

struct DcnConfig {
  std::int64_t ids = 100'000;  // of all fields together: each has ids of its own
  std::int64_t fields = 26;
  std::int64_t numbers = 13;
  std::int64_t embedding_dim = 8;
  std::int64_t cross_layers = 2;
  std::vector<std::int64_t> hidden = {128, 64};

  friend bool operator==(const DcnConfig&, const DcnConfig&) = default;
};

struct DeepFmConfig {
  std::int64_t ids = 100'000;  // of all fields together: each has ids of its own
  std::int64_t fields = 26;
  std::int64_t numbers = 13;
  std::int64_t factors = 8;
  std::vector<std::int64_t> hidden = {128, 64};

  friend bool operator==(const DeepFmConfig&, const DeepFmConfig&) = default;
};

struct DlrmConfig {
  std::int64_t dense_features = 13;
  std::vector<std::int64_t> table_rows = {1460, 583, 100000, 100000, 305, 24};  // one table a category
  std::int64_t embedding_dim = 16;                // also what the bottom layers end in
  std::vector<std::int64_t> bottom = {512, 256};  // width of each hidden layer
  std::vector<std::int64_t> top = {512, 256};

  friend bool operator==(const DlrmConfig&, const DlrmConfig&) = default;
};

struct Gpt2Config {
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;
  std::int64_t n_embd = 768;
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double resid_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;

  friend bool operator==(const Gpt2Config&, const Gpt2Config&) = default;
};

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

struct LstmConfig {
  std::int64_t vocab_size = 10000;
  std::int64_t embedding_size = 650;
  std::int64_t hidden_size = 650;
  std::int64_t num_layers = 2;
  double dropout = 0.5;  // of the embedding, between layers and before the decoder

  friend bool operator==(const LstmConfig&, const LstmConfig&) = default;
};

struct MlpConfig {
  std::int64_t in_features = 784;
  std::vector<std::int64_t> hidden = {256, 256};  // width of each hidden layer
  std::int64_t out_features = 10;
  double dropout = 0;  // after each hidden layer

  friend bool operator==(const MlpConfig&, const MlpConfig&) = default;
};

struct ResnetConfig {
  std::vector<std::int64_t> layers = {2, 2, 2,
                                      2};  // blocks in each of the four layers; {3, 4, 6, 3} is ResNet-34
  std::int64_t width = 64;                 // channels of the first layer; each next one has twice as many
  std::int64_t in_channels = 3;
  std::int64_t num_classes = 1000;

  friend bool operator==(const ResnetConfig&, const ResnetConfig&) = default;
};

struct T5Config {
  std::int64_t vocab_size = 32128;
  std::int64_t d_model = 512;
  std::int64_t d_kv = 64;  // width of a head
  std::int64_t d_ff = 2048;
  std::int64_t num_layers = 6;  // of the encoder
  std::int64_t num_decoder_layers = 6;
  std::int64_t num_heads = 8;
  std::int64_t relative_attention_num_buckets = 32;
  std::int64_t relative_attention_max_distance = 128;
  double dropout_rate = 0.1;
  double layer_norm_epsilon = 1e-6;
  bool is_gated_act = false;          // GELU(wi_0 x) · wi_1 x instead of ReLU(wi x)
  bool tie_word_embeddings = true;    // the output projection is the embedding
  bool scale_decoder_outputs = true;  // by 1 / √d_model before it

  friend bool operator==(const T5Config&, const T5Config&) = default;
};

struct VitConfig {
  std::int64_t image_size = 224;
  std::int64_t patch_size = 16;
  std::int64_t num_channels = 3;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  std::int64_t num_classes = 1000;
  double hidden_dropout_prob = 0;
  double attention_probs_dropout_prob = 0;
  double layer_norm_eps = 1e-12;

  friend bool operator==(const VitConfig&, const VitConfig&) = default;
};

struct WideDeepConfig {
  std::int64_t ids = 100'000;  // of all fields together: each has ids of its own
  std::int64_t fields = 26;
  std::int64_t numbers = 13;
  std::int64_t embedding_dim = 8;
  std::vector<std::int64_t> hidden = {128, 64};

  friend bool operator==(const WideDeepConfig&, const WideDeepConfig&) = default;
};

struct Word2VecConfig {
  std::int64_t words = 100'000;  // ids
  std::int64_t embedding_dim = 100;
  std::int64_t negatives = 5;  // drawn for each neighbour

  friend bool operator==(const Word2VecConfig&, const Word2VecConfig&) = default;
};

// Width of a head.
std::int64_t head_dim(const LlamaConfig& config);

using Config =
    std::variant<BertConfig, DcnConfig, DeepFmConfig, DlrmConfig, Gpt2Config, LlamaConfig, LstmConfig,
                 MlpConfig, ResnetConfig, T5Config, VitConfig, WideDeepConfig, Word2VecConfig>;

struct Flavor {
  std::string_view model;   // "gpt2"
  std::string_view flavor;  // "124M"; "" is the one taken when none is named
  Config config;
};

std::span<const Flavor> flavors();  // every model has at least one, all of a model in a row
std::optional<Config> find(std::string_view model,
                           std::string_view flavor);  // nullopt: there is none of that name

}  // namespace models
