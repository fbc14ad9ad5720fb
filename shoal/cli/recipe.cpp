// SPDX-License-Identifier: Apache-2.0
// The table of a recipe's keys.
#include "shoal/cli/recipe.h"

#include <nlohmann/json.hpp>

#include "shoal/base/names.h"
#include "shoal/base/text.h"

namespace shoal::cli {

static constexpr Names<DatasetName, 7> kDatasets = {{{DatasetName::Text, "text"},
                                                     {DatasetName::Bytes, "bytes"},
                                                     {DatasetName::RandomImages, "random_images"},
                                                     {DatasetName::MaskedText, "masked_text"},
                                                     {DatasetName::CorruptedText, "corrupted_text"},
                                                     {DatasetName::Digits, "digits"},
                                                     {DatasetName::Files, "files"}}};
static constexpr Names<OptimizerName, 7> kOptimizers = {{{OptimizerName::SGD, "SGD"},
                                                         {OptimizerName::Adam, "Adam"},
                                                         {OptimizerName::AdamW, "AdamW"},
                                                         {OptimizerName::Adagrad, "Adagrad"},
                                                         {OptimizerName::RMSprop, "RMSprop"},
                                                         {OptimizerName::Lion, "Lion"},
                                                         {OptimizerName::LAMB, "LAMB"}}};
static constexpr Names<rewrite::Master, 3> kMasters = {{{rewrite::Master::Float32, "float32"},
                                                        {rewrite::Master::None, "none"},
                                                        {rewrite::Master::Kahan, "kahan"}}};
static constexpr Names<StateType, 3> kStateTypes = {
    {{StateType::Float32, "float32"}, {StateType::BFloat16, "bfloat16"}, {StateType::UInt8, "uint8"}}};
static constexpr Names<DecayType, 4> kDecays = {{{DecayType::Constant, "constant"},
                                                 {DecayType::Linear, "linear"},
                                                 {DecayType::Cosine, "cosine"},
                                                 {DecayType::WarmupStableDecay, "warmup_stable_decay"}}};
static constexpr Names<AsyncMode, 2> kAsyncModes = {
    {{AsyncMode::Disabled, "disabled"}, {AsyncMode::Async, "async"}}};
static constexpr Names<FloatType, 2> kFloats = {
    {{FloatType::Float32, "float32"}, {FloatType::Float64, "float64"}}};
static constexpr Names<DeviceType, 2> kDevices = {{{DeviceType::CPU, "cpu"}, {DeviceType::CUDA, "cuda"}}};

using rewrite::RecomputeMode;
static constexpr Names<RecomputeMode, 4> kRecomputeModes = {{{RecomputeMode::None, "none"},
                                                             {RecomputeMode::Full, "full"},
                                                             {RecomputeMode::Selective, "selective"},
                                                             {RecomputeMode::Auto, "auto"}}};

std::string_view name_of(DatasetName name) { return kDatasets[static_cast<std::size_t>(name)].second; }

// `Table` is one of the tables above; its rows are in the order of the enumerators.
template <const auto& Table, class Enum>
static Choice choice(Enum& target) {
  Choice result = {
      .names = {},
      .set = [](void* at, std::size_t index) { *static_cast<Enum*>(at) = Table[index].first; },
      .get = [](const void* at) { return static_cast<std::size_t>(*static_cast<const Enum*>(at)); },
      .target = &target};
  for (const auto& row : Table) result.names.push_back(row.second);
  return result;
}

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

static void append(std::vector<Option>& options, models::DlrmConfig& config) {
  options.insert(options.end(),
                 {{"model", "dense_features", &config.dense_features, 1, 1e9, "numbers of a sample"},
                  {"model", "table_rows", &config.table_rows, 1, 1e9, "rows of each category's table"},
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

std::vector<Option> options_of(Recipe& recipe) {
  auto& [job, model, dataset, training, parallelism, zero, memory, precision, recompute, offload, optimizer,
         lr_scheduler, metrics, checkpoint, profiling, validation, verify, sample, command] = recipe;
  std::vector<Option> options = {
      {"job", "dump_folder", &job.dump_folder, 0, 0, "where results go"},
      {"model", "name", &model.name, 0, 0, "bert, dlrm, gpt2, llama, lstm, mlp, resnet, t5 or vit"},
      {"model", "flavor", &model.flavor, 0, 0, "a published size, which the keys below change"},
  };
  std::visit([&](auto& config) { append(options, config); }, model.config);
  options.insert(
      options.end(),
      {{"dataset", "name", choice<kDatasets>(dataset.name), 0, 0,
        "what is learnt, and from what; see recipes/"},
       {"dataset", "path", &dataset.path, 0, 0, "file or folder; \"\": what is found on the machine"},
       {"dataset", "held_out_bytes", &dataset.held_out_bytes, 1, 1e12, "of the text, never trained on"},
       {"dataset", "image_size", &dataset.image_size, 1, 1e5, "height and width of random_images"},
       {"dataset", "token_bytes", &dataset.token_bytes, 2, 4,
        "of an id in a path NAME.bin of token ids: 2 or 4"},
       {"dataset", "prefetch", &dataset.prefetch, 0, 1e6, "batches made ahead; 0: each when it is wanted"},
       {"training", "local_batch_size", &training.local_batch_size, 1, 1e9,
        "sequences, rows or images at once"},
       {"training", "global_batch_size", &training.global_batch_size, -1, 1e12,
        "of a step on all ranks, accumulated; -1: one each"},
       {"training", "seq_len", &training.seq_len, 1, 1e9, "tokens of a sequence"},
       {"training", "steps", &training.steps, 1, 1e12, "updates"},
       {"training", "max_norm", &training.max_norm, 0, 1e18, "clip the gradients' global norm; 0: do not"},
       {"training", "seed", &training.seed, 0, 9e18, "of initial weights, batches, dropout, sample"},
       {"training", "dtype", choice<kFloats>(training.dtype), 0, 0, "of parameters and arithmetic"},
       {"training", "device", choice<kDevices>(training.device), 0, 0,
        "of the model: cuda is, for each rank, the GPU of its number on its host"},
       {"parallelism", "data_parallel_replicate_degree", &parallelism.data_parallel_replicate_degree, -1, 1e6,
        "ranks that share the batch; -1: the rest"},
       {"parallelism", "data_parallel_shard_degree", &parallelism.data_parallel_shard_degree, -1, 1e6,
        "and store parts (zero.stage); -1: the rest"},
       {"parallelism", "tensor_parallel_degree", &parallelism.tensor_parallel_degree, -1, 1e6,
        "that share layers, by the plan; -1: the rest"},
       {"parallelism", "pipeline_parallel_degree", &parallelism.pipeline_parallel_degree, -1, 1e6,
        "that have a stage of the model each; -1: the rest"},
       {"parallelism", "pipeline_parallel_schedule", &parallelism.pipeline_parallel_schedule, 0, 0,
        "gpipe, 1f1b, eager_1f1b; \"\": the plan's, or 1f1b"},
       {"parallelism", "pipeline_parallel_microbatches", &parallelism.pipeline_parallel_microbatches, 0, 1e9,
        "of a batch; 0: the plan's, or a stage each"},
       {"parallelism", "plan", &parallelism.plan, 0, 0, "file that says how layers are cut"},
       {"zero", "stage", &zero.stage, -1, 3, "0 to 3; -1: 3 where the shard degree is above 1"},
       {"memory", "limit", &memory.limit, 0, 0, "refuse a run of which a rank takes more: 2GiB; \"\": none"},
       {"memory", "auto", &memory.automatic, 0, 0,
        "recompute, and smaller micro-batches, as the limit wants them"},
       {"precision", "compute", &precision.compute, 0, 0,
        "bfloat16, float16: products in it, the rest in float32; float32: all"},
       {"precision", "lower", &precision.lower, 0, 0, "ops that are so too, \"aten::exp aten::log\""},
       {"precision", "full", &precision.full, 0, 0, "ops that are float32 all the same"},
       {"precision", "scale", &precision.scale, 0, 1e18, "float16: of the loss, at first; a power of two"},
       {"precision", "grows_after", &precision.grows_after, 1, 1e9,
        "float16: it is twice that after so many updates without an overflow"},
       {"precision", "master", choice<kMasters>(precision.master), 0, 0,
        "float32; none, kahan: weights in bfloat16, rounded by chance or with a compensation"},
       {"recompute", "mode", choice<kRecomputeModes>(recompute.mode), 0, 0,
        "what backward makes again instead of forward keeping it"},
       {"recompute", "modules", &recompute.modules, 0, 0,
        "full, selective: of these blocks, \"h.*\"; \"\": numbered ones"},
       {"recompute", "bytes", &recompute.bytes, 0, 0, "auto: of activations at once, 96MiB"},
       {"recompute", "collectives", &recompute.collectives, 0, 0, "full, selective: these too"},
       {"offload", "parameters", &offload.parameters, 0, 0, "lie in a file, which is read there"},
       {"offload", "optimizer_state", &offload.optimizer_state, 0, 0, "likewise"},
       {"offload", "gradients", &offload.gradients, 0, 0, "likewise, until the update"},
       {"offload", "activations", &offload.activations, 0, 0, "likewise, of what backward reads"},
       {"offload", "least", &offload.least, 0, 0, "what is smaller stays in memory; \"\": 64KiB"},
       {"offload", "folder", &offload.folder, 0, 0, "where the file is, on a disk; \"\": /var/tmp"},
       {"optimizer", "name", choice<kOptimizers>(optimizer.name), 0, 0, "update rule"},
       {"optimizer", "lr", &optimizer.lr, 0, 1e3, "learning rate"},
       {"optimizer", "beta1", &optimizer.beta1, 0, 1, "Adam, AdamW, Lion, LAMB"},
       {"optimizer", "beta2", &optimizer.beta2, 0, 1, "Adam, AdamW, Lion, LAMB"},
       {"optimizer", "eps", &optimizer.eps, 0, 1, "Adam, AdamW, Adagrad, RMSprop, LAMB"},
       {"optimizer", "weight_decay", &optimizer.weight_decay, 0, 1e3, "of matrices; vectors have none"},
       {"optimizer", "momentum", &optimizer.momentum, 0, 1, "SGD, RMSprop"},
       {"optimizer", "nesterov", &optimizer.nesterov, 0, 0, "SGD; look ahead along the momentum"},
       {"optimizer", "alpha", &optimizer.alpha, 0, 1, "RMSprop; of the average of squares"},
       {"optimizer", "centered", &optimizer.centered, 0, 0, "RMSprop; by the variance, not the square"},
       {"optimizer", "state_dtype", choice<kStateTypes>(optimizer.state_dtype), 0, 0,
        "of averages and momentum; float32: training.dtype; not LAMB"},
       {"lr_scheduler", "warmup_steps", &lr_scheduler.warmup_steps, 0, 1e12, "linear rise from 0"},
       {"lr_scheduler", "decay_type", choice<kDecays>(lr_scheduler.decay_type), 0, 0, "after the warm-up"},
       {"lr_scheduler", "min_lr_factor", &lr_scheduler.min_lr_factor, 0, 1, "of lr, at the end of a decay"},
       {"lr_scheduler", "decay_steps", &lr_scheduler.decay_steps, 0, 1e12,
        "warmup_stable_decay: the last steps"},
       {"metrics", "log_freq", &metrics.log_freq, 1, 1e12, "steps from one progress line to the next"},
       {"metrics", "enable_tensorboard", &metrics.enable_tensorboard, 0, 0, "write TensorBoard event files"},
       {"metrics", "save_tb_folder", &metrics.save_tb_folder, 0, 0, "of them, in job.dump_folder"},
       {"checkpoint", "enable", &checkpoint.enable, 0, 0, "save checkpoints, and go on from the newest one"},
       {"checkpoint", "folder", &checkpoint.folder, 0, 0, "of them, in job.dump_folder"},
       {"checkpoint", "interval", &checkpoint.interval, 1, 1e12, "steps from one to the next"},
       {"checkpoint", "keep_latest_k", &checkpoint.keep_latest_k, 0, 1e9,
        "older ones are removed; 0: none is"},
       {"checkpoint", "async_mode", choice<kAsyncModes>(checkpoint.async_mode), 0, 0,
        "async: written while training goes on"},
       {"checkpoint", "load_step", &checkpoint.load_step, -1, 1e12,
        "go on from this one; -1: the newest whole"},
       {"checkpoint", "initial_load_path", &checkpoint.initial_load_path, 0, 0,
        "weights to begin with: safetensors, a folder"},
       {"profiling", "enable_profiling", &profiling.enable_profiling, 0, 0, "write a Chrome trace"},
       {"validation", "freq", &validation.freq, 0, 1e12, "steps between validations; 0: only at the end"},
       {"validation", "steps", &validation.steps, 1, 1e12, "batches of each; the last one takes all"},
       {"verify", "steps", &verify.steps, 1, 1e6, "that shoal verify compares"},
       {"sample", "tokens", &sample.tokens, 0, 1e6, "length of the text written at the end; 0: none"},
       {"sample", "temperature", &sample.temperature, 1e-3, 1e3, "below 1: likelier tokens"},
       {"sample", "top_k", &sample.top_k, 1, 1e9, "of the likeliest tokens only"},
       {"sample", "prompt", &sample.prompt, 0, 0, "what the text begins with"},
       {"sample", "prompt_tokens", &sample.prompt_tokens, 0, 1e9, "what it begins with, as token ids"},
       {"sample", "inputs_file", &sample.inputs_file, 0, 0,
        "generate: safetensors of inputs, for logits alone"},
       {"sample", "logits_file", &sample.logits_file, 0, 0, "generate: where the logits go"}});
  return options;
}

namespace {

struct ToText {
  std::string operator()(const std::string* text) const { return shoal::quoted(*text); }
  std::string operator()(const Choice& choice) const {
    return shoal::quoted(choice.names[choice.get(choice.target)]);
  }
  template <class Number>
  std::string operator()(const Number* number) const {
    return nlohmann::json(*number).dump();
  }
};

}  // namespace

std::string value_of(const Option& option) { return std::visit(ToText{}, option.target); }

std::map<std::string, std::string> settings_of(const Recipe& recipe) {
  Recipe copy = recipe;
  std::map<std::string, std::string> settings;
  for (const Option& option : options_of(copy))
    settings.emplace(std::string(option.section) + "." + std::string(option.key), value_of(option));
  return settings;
}

}  // namespace shoal::cli
