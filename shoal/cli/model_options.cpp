// SPDX-License-Identifier: Apache-2.0
// The keys of each model: [model] in a recipe.
#include "shoal/cli/model_options.h"

namespace shoal::cli {

static void append(std::vector<Option>& options, models::BertConfig& config) {
  options.insert(
      options.end(),
      {{"model", "vocab_size", &config.vocab_size, 257, 1e9, "tokens, the 256 bytes among them"},
       {"model", "hidden_size", &config.hidden_size, 1, 1e9, "width"},
       {"model", "num_hidden_layers", &config.num_hidden_layers, 1, 1e6, "blocks"},
       {"model", "num_attention_heads", &config.num_attention_heads, 1, 1e6, "divides hidden_size"},
       {"model", "intermediate_size", &config.intermediate_size, 1, 1e9,
        "width between a block's two layers"},
       {"model", "max_position_embeddings", &config.max_position_embeddings, 1, 1e9, "longest sequence"},
       {"model", "type_vocab_size", &config.type_vocab_size, 1, 1e9, "token types"},
       {"model", "hidden_dropout_prob", &config.hidden_dropout_prob, 0, 0.99, "dropout of layers' outputs"},
       {"model", "attention_probs_dropout_prob", &config.attention_probs_dropout_prob, 0, 0.99,
        "dropout of attention weights"},
       {"model", "layer_norm_eps", &config.layer_norm_eps, 0, 1, "added to the variance"}});
}

static void append(std::vector<Option>& options, models::DcnConfig& config) {
  options.insert(options.end(),
                 {{"model", "ids", &config.ids, 1, 9.3e18, "rows of the table: ids are below it"},
                  {"model", "fields", &config.fields, 1, 1e6, "ids of a sample"},
                  {"model", "numbers", &config.numbers, 1, 1e6, "numbers of a sample"},
                  {"model", "embedding_dim", &config.embedding_dim, 1, 1e6, "width of a row"},
                  {"model", "cross_layers", &config.cross_layers, 1, 1e4, "beside the hidden ones"},
                  {"model", "hidden", &config.hidden, 1, 1e9, "width of each hidden layer"}});
}

static void append(std::vector<Option>& options, models::DeepFmConfig& config) {
  options.insert(options.end(),
                 {{"model", "ids", &config.ids, 1, 9.3e18, "rows of the table: ids are below it"},
                  {"model", "fields", &config.fields, 1, 1e6, "ids of a sample"},
                  {"model", "numbers", &config.numbers, 1, 1e6, "numbers of a sample"},
                  {"model", "factors", &config.factors, 1, 1e6, "of an id, beside its weight"},
                  {"model", "hidden", &config.hidden, 1, 1e9, "width of each hidden layer"}});
}

static void append(std::vector<Option>& options, models::WideDeepConfig& config) {
  options.insert(
      options.end(),
      {{"model", "ids", &config.ids, 1, 9.3e18, "rows of the tables: ids are below it"},
       {"model", "fields", &config.fields, 1, 1e6, "ids of a sample"},
       {"model", "numbers", &config.numbers, 1, 1e6, "numbers of a sample"},
       {"model", "embedding_dim", &config.embedding_dim, 1, 1e6, "width of the deep part's rows"},
       {"model", "hidden", &config.hidden, 1, 1e9, "width of each hidden layer; []: none, no deep part"}});
}

static void append(std::vector<Option>& options, models::Word2VecConfig& config) {
  options.insert(options.end(),
                 {{"model", "words", &config.words, 1, 9.3e18, "rows of the tables: ids are below it"},
                  {"model", "embedding_dim", &config.embedding_dim, 1, 1e6, "width of a row"},
                  {"model", "negatives", &config.negatives, 1, 1e4, "words drawn beside each neighbour"}});
}

static void append(std::vector<Option>& options, models::DlrmConfig& config) {
  options.insert(options.end(),
                 {{"model", "dense_features", &config.dense_features, 1, 1e9, "numbers of a sample"},
                  {"model", "table_rows", &config.table_rows, 1, 9.3e18, "rows of each category's table"},
                  {"model", "embedding_dim", &config.embedding_dim, 1, 1e9, "width of the tables"},
                  {"model", "bottom", &config.bottom, 1, 1e9, "hidden layers over the numbers"},
                  {"model", "top", &config.top, 1, 1e9, "hidden layers over the products"}});
}

static void append(std::vector<Option>& options, models::LlamaConfig& config) {
  options.insert(
      options.end(),
      {{"model", "vocab_size", &config.vocab_size, 257, 1e9, "tokens, the 256 bytes among them"},
       {"model", "hidden_size", &config.hidden_size, 1, 1e9, "width"},
       {"model", "intermediate_size", &config.intermediate_size, 1, 1e9,
        "width between a block's two layers"},
       {"model", "num_hidden_layers", &config.num_hidden_layers, 1, 1e6, "blocks"},
       {"model", "num_attention_heads", &config.num_attention_heads, 1, 1e6, "of queries"},
       {"model", "num_key_value_heads", &config.num_key_value_heads, 1, 1e6, "divides num_attention_heads"},
       {"model", "head_dim", &config.head_dim, 0, 1e6, "of a head; 0: hidden_size / num_attention_heads"},
       {"model", "max_position_embeddings", &config.max_position_embeddings, 1, 1e9, "longest sequence"},
       {"model", "rms_norm_eps", &config.rms_norm_eps, 0, 1, "added to the mean square"},
       {"model", "rope_theta", &config.rope_theta, 1, 1e12, "base of the rotary frequencies"},
       {"model", "rope_factor", &config.rope_factor, 1, 1e6, "above 1: Llama 3's stretching of long waves"},
       {"model", "rope_low_freq_factor", &config.rope_low_freq_factor, 0, 1e6, "where all are stretched"},
       {"model", "rope_high_freq_factor", &config.rope_high_freq_factor, 0, 1e6, "where none is"},
       {"model", "rope_original_max_position_embeddings", &config.rope_original_max_position_embeddings, 1,
        1e9, "what the two factors divide"},
       {"model", "attention_bias", &config.attention_bias, 0, 0, "projections of attention have biases"},
       {"model", "mlp_bias", &config.mlp_bias, 0, 0, "the other ones have"},
       {"model", "tie_word_embeddings", &config.tie_word_embeddings, 0, 0, "the output is the embedding"},
       {"model", "attention_dropout", &config.attention_dropout, 0, 0.99, "dropout of attention weights"}});
}

static void append(std::vector<Option>& options, models::LstmConfig& config) {
  options.insert(options.end(),
                 {{"model", "vocab_size", &config.vocab_size, 257, 1e9, "tokens, the 256 bytes among them"},
                  {"model", "embedding_size", &config.embedding_size, 1, 1e9, "width of the embedding"},
                  {"model", "hidden_size", &config.hidden_size, 1, 1e9, "width of a layer"},
                  {"model", "num_layers", &config.num_layers, 1, 1e6, "layers"},
                  {"model", "dropout", &config.dropout, 0, 0.99, "before, between and after the layers"}});
}

static void append(std::vector<Option>& options, models::MlpConfig& config) {
  options.insert(options.end(), {{"model", "in_features", &config.in_features, 1, 1e9,
                                  "inputs; 256 for each byte of context"},
                                 {"model", "hidden", &config.hidden, 1, 1e9, "width of each hidden layer"},
                                 {"model", "out_features", &config.out_features, 1, 1e9, "classes"},
                                 {"model", "dropout", &config.dropout, 0, 0.99, "after each hidden layer"}});
}

static void append(std::vector<Option>& options, models::Gpt2Config& config) {
  options.insert(
      options.end(),
      {{"model", "vocab_size", &config.vocab_size, 257, 1e9, "tokens, the 256 bytes among them"},
       {"model", "n_positions", &config.n_positions, 1, 1e9, "longest sequence"},
       {"model", "n_embd", &config.n_embd, 1, 1e9, "width"},
       {"model", "n_layer", &config.n_layer, 1, 1e6, "blocks"},
       {"model", "n_head", &config.n_head, 1, 1e6, "attention heads; divides n_embd"},
       {"model", "embd_pdrop", &config.embd_pdrop, 0, 0.99, "dropout after the embeddings"},
       {"model", "attn_pdrop", &config.attn_pdrop, 0, 0.99, "dropout of attention weights"},
       {"model", "resid_pdrop", &config.resid_pdrop, 0, 0.99, "dropout before each residual sum"},
       {"model", "layer_norm_epsilon", &config.layer_norm_epsilon, 0, 1, "added to the variance"}});
}

static void append(std::vector<Option>& options, models::ResnetConfig& config) {
  options.insert(options.end(),
                 {{"model", "layers", &config.layers, 1, 1e4, "blocks in each layer"},
                  {"model", "width", &config.width, 1, 1e6, "channels of the first layer"},
                  {"model", "in_channels", &config.in_channels, 1, 1e6, "channels of an image"},
                  {"model", "num_classes", &config.num_classes, 1, 1e9, "classes"}});
}

static void append(std::vector<Option>& options, models::T5Config& config) {
  options.insert(
      options.end(),
      {{"model", "vocab_size", &config.vocab_size, 257, 1e9, "tokens, the 256 bytes among them"},
       {"model", "d_model", &config.d_model, 1, 1e9, "width"},
       {"model", "d_kv", &config.d_kv, 1, 1e9, "width of a head"},
       {"model", "d_ff", &config.d_ff, 1, 1e9, "width between a block's two layers"},
       {"model", "num_layers", &config.num_layers, 1, 1e6, "blocks of the encoder"},
       {"model", "num_decoder_layers", &config.num_decoder_layers, 1, 1e6, "blocks of the decoder"},
       {"model", "num_heads", &config.num_heads, 1, 1e6, "attention heads"},
       {"model", "relative_attention_num_buckets", &config.relative_attention_num_buckets, 4, 1e6,
        "distances told apart"},
       {"model", "relative_attention_max_distance", &config.relative_attention_max_distance, 2, 1e9,
        "beyond it all are one"},
       {"model", "dropout_rate", &config.dropout_rate, 0, 0.99, "dropout, everywhere"},
       {"model", "layer_norm_epsilon", &config.layer_norm_epsilon, 0, 1, "added to the mean square"},
       {"model", "is_gated_act", &config.is_gated_act, 0, 0, "gated GELU instead of ReLU"},
       {"model", "tie_word_embeddings", &config.tie_word_embeddings, 0, 0, "the output is the embedding"},
       {"model", "scale_decoder_outputs", &config.scale_decoder_outputs, 0, 0,
        "before it, by 1 / √d_model"}});
}

static void append(std::vector<Option>& options, models::VitConfig& config) {
  options.insert(
      options.end(),
      {{"model", "image_size", &config.image_size, 1, 1e5, "height and width"},
       {"model", "patch_size", &config.patch_size, 1, 1e5, "of a patch; divides image_size"},
       {"model", "num_channels", &config.num_channels, 1, 1e6, "channels of an image"},
       {"model", "hidden_size", &config.hidden_size, 1, 1e9, "width"},
       {"model", "num_hidden_layers", &config.num_hidden_layers, 1, 1e6, "blocks"},
       {"model", "num_attention_heads", &config.num_attention_heads, 1, 1e6, "divides hidden_size"},
       {"model", "intermediate_size", &config.intermediate_size, 1, 1e9,
        "width between a block's two layers"},
       {"model", "num_classes", &config.num_classes, 1, 1e9, "classes"},
       {"model", "hidden_dropout_prob", &config.hidden_dropout_prob, 0, 0.99, "dropout of layers' outputs"},
       {"model", "attention_probs_dropout_prob", &config.attention_probs_dropout_prob, 0, 0.99,
        "dropout of attention weights"},
       {"model", "layer_norm_eps", &config.layer_norm_eps, 0, 1, "added to the variance"}});
}

void append_model(std::vector<Option>& options, models::Config& config) {
  std::visit([&](auto& of_model) { append(options, of_model); }, config);
}

}  // namespace shoal::cli
