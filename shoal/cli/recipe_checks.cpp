// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/recipe_checks.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <variant>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/data/criteo.h"

namespace shoal::cli {

// The dataset that has what the model reads.
static std::string_view dataset_of(const models::Config& config) {
  static constexpr std::array<std::string_view, std::variant_size_v<models::Config>> kOfModels = {
      "masked_text", "clicks",        "clicks",         "files",  "text",   "text", "text",
      "bytes",       "random_images", "corrupted_text", "digits", "clicks", "words"};
  return kOfModels[config.index()];
}

static void check_model(const models::Gpt2Config& config, const Recipe& recipe, const auto& require) {
  require(config.n_embd % config.n_head == 0, "model.n_embd is ", config.n_embd,
          ", not a multiple of model.n_head, ", config.n_head);
  require(recipe.training.seq_len <= config.n_positions, "training.seq_len is ", recipe.training.seq_len,
          ", more than model.n_positions, ", config.n_positions);
}

static void check_model(const models::BertConfig& config, const Recipe& recipe, const auto& require) {
  require(config.hidden_size % config.num_attention_heads == 0, "model.hidden_size is ", config.hidden_size,
          ", not a multiple of model.num_attention_heads, ", config.num_attention_heads);
  require(config.vocab_size > 257, "model.vocab_size is 257: there is no room for the mask's token");
  require(recipe.training.seq_len <= config.max_position_embeddings, "training.seq_len is ",
          recipe.training.seq_len, ", more than model.max_position_embeddings, ",
          config.max_position_embeddings);
}

static void check_model(const models::LlamaConfig& config, const Recipe& recipe, const auto& require) {
  require(config.head_dim > 0 || config.hidden_size % config.num_attention_heads == 0,
          "model.hidden_size is ", config.hidden_size, ", not a multiple of model.num_attention_heads, ",
          config.num_attention_heads);
  require(models::head_dim(config) % 2 == 0, "a head has ", models::head_dim(config),
          " numbers, but rotary embeddings turn them in pairs");
  require(config.num_attention_heads % config.num_key_value_heads == 0, "model.num_attention_heads is ",
          config.num_attention_heads, ", not a multiple of model.num_key_value_heads, ",
          config.num_key_value_heads);
  require(recipe.training.seq_len <= config.max_position_embeddings, "training.seq_len is ",
          recipe.training.seq_len, ", more than model.max_position_embeddings, ",
          config.max_position_embeddings);
}

static void check_model(const models::LstmConfig&, const Recipe&, const auto&) {}

static void check_model(const models::T5Config& config, const Recipe&, const auto& require) {
  require(config.num_layers > 0 && config.num_decoder_layers > 0, "model.num_layers is 0");
  require(config.relative_attention_max_distance > config.relative_attention_num_buckets / 4,
          "model.relative_attention_max_distance is ", config.relative_attention_max_distance,
          ", no more than a quarter of model.relative_attention_num_buckets, ",
          config.relative_attention_num_buckets);
}

static void check_model(const models::MlpConfig& config, const Recipe&, const auto& require) {
  require(config.in_features % 256 == 0, "model.in_features is ", config.in_features,
          ", not a multiple of 256, one for each value of a byte");
  require(config.out_features == 256, "model.out_features is ", config.out_features,
          ", but a byte has 256 values");
}

static void check_model(const models::ResnetConfig&, const Recipe&, const auto&) {}

static void check_model(const models::VitConfig& config, const Recipe&, const auto& require) {
  require(
      config.image_size == 8 && config.num_channels == 1 && config.num_classes == 10,
      "dataset.name \"digits\" has images of 8x8 pixels, one channel and 10 classes; model.image_size is ",
      config.image_size, ", model.num_channels ", config.num_channels, ", model.num_classes ",
      config.num_classes);
  require(config.image_size % config.patch_size == 0, "model.image_size is ", config.image_size,
          ", not a multiple of model.patch_size, ", config.patch_size);
  require(config.hidden_size % config.num_attention_heads == 0, "model.hidden_size is ", config.hidden_size,
          ", not a multiple of model.num_attention_heads, ", config.num_attention_heads);
}

template <class Config>
static void check_clicks(const Config& config, const auto& require) {
  using data::CriteoParser;
  require(config.fields == CriteoParser::kSlots && config.numbers == CriteoParser::kNumbers,
          "a sample of clicks has ", CriteoParser::kSlots, " ids and ", CriteoParser::kNumbers,
          " numbers; model.fields is ", config.fields, ", model.numbers ", config.numbers);
}
static void check_model(const models::DcnConfig& config, const Recipe&, const auto& require) {
  check_clicks(config, require);
}
static void check_model(const models::DeepFmConfig& config, const Recipe&, const auto& require) {
  check_clicks(config, require);
}
static void check_model(const models::WideDeepConfig& config, const Recipe&, const auto& require) {
  check_clicks(config, require);
}
static void check_model(const models::Word2VecConfig&, const Recipe&, const auto&) {}

static void check_model(const models::DlrmConfig& config, const Recipe& recipe, const auto& require) {
  if (recipe.dataset.name != DatasetName::Files) {
    require(config.dense_features == data::CriteoParser::kNumbers &&
                config.table_rows.size() == data::CriteoParser::kSlots,
            "a sample of clicks has ", data::CriteoParser::kSlots, " ids and ", data::CriteoParser::kNumbers,
            " numbers; model.table_rows names ", config.table_rows.size(),
            " tables, model.dense_features is ", config.dense_features);
    return;
  }
  const auto num_tables = static_cast<std::int64_t>(config.table_rows.size());
  require(config.dense_features == kFileNumbers, "model.dense_features is ", config.dense_features,
          ", but dataset.name \"files\" has ", kFileNumbers);
  require(num_tables == kFileCategories, "model.table_rows names ", num_tables,
          " tables, but dataset.name \"files\" has ", kFileCategories);
}

void check_together(const Recipe& recipe, const std::string& path) {
  const auto require = [&](bool holds, const auto&... what) {
    if (!holds) fail(ErrorKind::InvalidInput, path, ": ", what...);
  };
  const std::string_view wanted = dataset_of(recipe.model.config);
  // Criteo's lines are what clicks are like, and DLRM reads them too.
  const bool is_clicks =
      recipe.dataset.name == DatasetName::Clicks || recipe.dataset.name == DatasetName::Criteo;
  require(name_of(recipe.dataset.name) == wanted ||
              (is_clicks && (wanted == "clicks" || recipe.model.name == "dlrm")),
          "model.name ", recipe.model.name, " learns from dataset.name ", in_quotes(wanted));
  require(recipe.dataset.name != DatasetName::Criteo || !recipe.dataset.path.empty(),
          "dataset.path is not said: dataset.name \"criteo\" reads a file of Criteo's lines, or a folder of "
          "them");
  for (std::size_t i = 0; i < recipe.annotate.size(); ++i)
    require(!recipe.annotate[i].modules.empty(), "annotate.", i,
            ".modules is not said; a module's name, as \"h.*.mlp\"");
  for (std::size_t i = 0; i < recipe.tables.size(); ++i) {
    const TableSettings& table = recipe.tables[i];
    require(!table.parameters.empty(), "tables.", i,
            ".parameters is not said: which of the model's parameters are in this table");
    require(table.clicks.empty() || table.scored, "tables.", i, ".clicks is ", in_quotes(table.clicks),
            ", and rows have no score that clicks count for. Remedy: scored = true");
    require(ps::parse_slot_days(table.slot_days).has_value(), "tables.", i, ".slot_days is ",
            in_quotes(table.slot_days),
            "; it is slot:days, each slot once, with spaces between them: \"3:7 12:30\"");
  }
  require(recipe.tables.empty() || recipe.training.max_norm == 0, "training.max_norm is ",
          recipe.training.max_norm,
          ", and the norm of all gradients would lack those of rows in [[tables]], "
          "which are summed up where the rows are; set it to 0");
  require(recipe.ps.day_steps == 0 || std::ranges::any_of(recipe.tables, &TableSettings::scored),
          "ps.day_steps is ", recipe.ps.day_steps,
          ", and no table has scores: nothing expires. Remedy: scored = true in [[tables]]");
  require(!recipe.ps.prefetch || recipe.ps.mode == ps::Mode::Sync, "ps.prefetch is true, and ps.mode is ",
          name_of(recipe.ps.mode), ", which asks for rows when it wants them; leave one of them out");
  require(!recipe.ps.prefetch || recipe.ps.cache_rows > 0,
          "ps.prefetch is true, and ps.cache_rows is 0: there is no room for what is asked for ahead");
  require(recipe.ps.wire_dtype == RowType::Float32 || recipe.ps.servers > 0,
          "ps.wire_dtype is bfloat16, and tables are in this process: there is no wire. Remedy: ps.servers");
  require(recipe.ps.memory.empty() || parse_bytes(recipe.ps.memory).value_or(0) > 0, "ps.memory is ",
          in_quotes(recipe.ps.memory), "; it is a number above 0 with a unit, B, KiB, MiB, GiB or TiB: 8GiB");
  require(recipe.ps.memory.empty() || !recipe.tables.empty(), "ps.memory is ", recipe.ps.memory,
          ", and the recipe has no [[tables]] for it to bound");
  require(recipe.ps.cold_folder.empty() || !recipe.ps.memory.empty(), "ps.cold_folder is ",
          in_quotes(recipe.ps.cold_folder), ", and ps.memory bounds nothing: give it too");
  require(recipe.ps.servers == 0 || !recipe.tables.empty(), "ps.servers is ", recipe.ps.servers,
          ", and the recipe has no [[tables]] for them to have");
  std::visit([&](const auto& config) { check_model(config, recipe, require); }, recipe.model.config);
  require(recipe.lr_scheduler.warmup_steps <= recipe.training.steps, "lr_scheduler.warmup_steps is ",
          recipe.lr_scheduler.warmup_steps, ", more than training.steps, ", recipe.training.steps);
  require(recipe.profiling.cluster.empty() || recipe.training.steps >= kComparedSteps,
          "profiling.cluster compares ", kComparedSteps, " steps, more than training.steps, ",
          recipe.training.steps);
  require(recipe.memory.limit.empty() || parse_bytes(recipe.memory.limit), "memory.limit is ",
          in_quotes(recipe.memory.limit), "; it is a number with a unit, B, KiB, MiB, GiB or TiB: 2GiB");
  require(recipe.training.global_batch_size != 0,
          "training.global_batch_size is 0; -1 is what the ranks' "
          "local ones make together");
  const bool is_stable = recipe.lr_scheduler.decay_type == DecayType::WarmupStableDecay;
  require(!is_stable ||
              (recipe.lr_scheduler.decay_steps > 0 &&
               recipe.lr_scheduler.decay_steps <= recipe.training.steps - recipe.lr_scheduler.warmup_steps),
          "lr_scheduler.decay_steps is ", recipe.lr_scheduler.decay_steps,
          ", not between 1 and the steps after the warm-up, ",
          recipe.training.steps - recipe.lr_scheduler.warmup_steps);
  for (const std::string& folder : {recipe.checkpoint.folder, recipe.metrics.save_tb_folder})
    require(!folder.empty() && folder.front() != '/' && folder.find("..") == std::string::npos,
            in_quotes(folder), " is no folder in job.dump_folder");
  require(!recipe.optimizer.nesterov || recipe.optimizer.momentum > 0,
          "optimizer.nesterov looks ahead along a momentum, but optimizer.momentum is 0");
  require(recipe.optimizer.state_dtype == StateType::Float32 || recipe.optimizer.name != OptimizerName::LAMB,
          "optimizer.state_dtype is for updates that go element by element, and optimizer.name = \"LAMB\" "
          "looks at "
          "whole tensors; leave it at float32, or take AdamW");
  for (const auto& [key, type] :
       {std::pair("compute", recipe.precision.compute), std::pair("reduce", recipe.precision.reduce)})
    require(type == "float32" || type == "bfloat16" || type == "float16", "precision.", key, " is '", type,
            "'; it is float32, bfloat16 or float16");
  const bool has_tokens = recipe.dataset.name == DatasetName::Text ||
                          recipe.dataset.name == DatasetName::MaskedText ||
                          recipe.dataset.name == DatasetName::CorruptedText;
  require(recipe.precision.master == rewrite::Master::Float32 || has_tokens,
          "precision.master is for models of tokens, and dataset.name = \"", name_of(recipe.dataset.name),
          "\" gives float32 numbers, which a model in bfloat16 does not read; leave it at float32");
  require(
      recipe.precision.master == rewrite::Master::Float32 ||
          (recipe.optimizer.name != OptimizerName::LAMB && recipe.training.dtype == FloatType::Float32),
      "precision.master is for updates that go element by element, and for models in float32 or bfloat16; "
      "leave it at float32, or take AdamW and training.dtype = \"float32\"");
}

}  // namespace shoal::cli
