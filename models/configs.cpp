// SPDX-License-Identifier: Apache-2.0
#include "models/configs.h"

namespace models {

std::int64_t head_dim(const LlamaConfig& config) {
  return config.head_dim > 0 ? config.head_dim : config.hidden_size / config.num_attention_heads;
}

static BertConfig bert_large() {
  return {.hidden_size = 1024, .num_hidden_layers = 24, .num_attention_heads = 16, .intermediate_size = 4096};
}

// Llama 3.2.
static LlamaConfig llama_1b() {
  return {.vocab_size = 128256,
          .hidden_size = 2048,
          .intermediate_size = 8192,
          .num_hidden_layers = 16,
          .num_key_value_heads = 8,
          .head_dim = 64,
          .max_position_embeddings = 131072,
          .rms_norm_eps = 1e-5,
          .rope_theta = 500000,
          .rope_factor = 32,
          .tie_word_embeddings = true};
}

// Llama 3.1.
static LlamaConfig llama_8b() {
  return {.vocab_size = 128256,
          .hidden_size = 4096,
          .intermediate_size = 14336,
          .num_key_value_heads = 8,
          .head_dim = 128,
          .max_position_embeddings = 131072,
          .rms_norm_eps = 1e-5,
          .rope_theta = 500000,
          .rope_factor = 8};
}

static T5Config t5_base() {
  return {.d_model = 768, .d_ff = 3072, .num_layers = 12, .num_decoder_layers = 12, .num_heads = 12};
}

static VitConfig vit_large() {
  return {.hidden_size = 1024, .num_hidden_layers = 24, .num_attention_heads = 16, .intermediate_size = 4096};
}

std::span<const Flavor> flavors() {
  static const std::vector<Flavor> table = {
      {"bert", "", BertConfig{}},
      {"bert", "base", BertConfig{}},
      {"bert", "large", bert_large()},
      {"dcn", "", DcnConfig{}},
      {"deepfm", "", DeepFmConfig{}},
      {"dlrm", "", DlrmConfig{}},
      {"gpt2", "", Gpt2Config{}},
      {"gpt2", "124M", Gpt2Config{}},
      {"gpt2", "355M", Gpt2Config{.n_embd = 1024, .n_layer = 24, .n_head = 16}},
      {"gpt2", "774M", Gpt2Config{.n_embd = 1280, .n_layer = 36, .n_head = 20}},
      {"llama", "", LlamaConfig{}},
      {"llama", "1B", llama_1b()},
      {"llama", "7B", LlamaConfig{}},
      {"llama", "8B", llama_8b()},
      {"lstm", "", LstmConfig{}},
      {"lstm", "medium", LstmConfig{}},
      {"lstm", "large", LstmConfig{.embedding_size = 1500, .hidden_size = 1500, .dropout = 0.65}},
      {"mlp", "", MlpConfig{}},
      {"resnet", "", ResnetConfig{}},
      {"resnet", "18", ResnetConfig{}},
      {"resnet", "34", ResnetConfig{.layers = {3, 4, 6, 3}}},
      {"t5", "", T5Config{}},
      {"t5", "small", T5Config{}},
      {"t5", "base", t5_base()},
      {"vit", "", VitConfig{}},
      {"vit", "base", VitConfig{}},
      {"vit", "large", vit_large()},
      {"wide_deep", "", WideDeepConfig{}},
      {"wide_deep", "linear", WideDeepConfig{.hidden = {}}},
      {"word2vec", "", Word2VecConfig{}},
  };
  return table;
}

std::optional<Config> find(std::string_view model, std::string_view flavor) {
  for (const Flavor& row : flavors())
    if (row.model == model && row.flavor == flavor) return row.config;
  return std::nullopt;
}

}  // namespace models
