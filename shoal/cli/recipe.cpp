// SPDX-License-Identifier: Apache-2.0
// The table of a recipe's keys.
#include "shoal/cli/recipe.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "shoal/base/error.h"
#include "shoal/base/names.h"
#include "shoal/base/text.h"
#include "shoal/cli/model_options.h"

namespace shoal::cli {

static constexpr Names<DatasetName, 10> kDatasets = {{{DatasetName::Text, "text"},
                                                      {DatasetName::Bytes, "bytes"},
                                                      {DatasetName::RandomImages, "random_images"},
                                                      {DatasetName::MaskedText, "masked_text"},
                                                      {DatasetName::CorruptedText, "corrupted_text"},
                                                      {DatasetName::Digits, "digits"},
                                                      {DatasetName::Files, "files"},
                                                      {DatasetName::Clicks, "clicks"},
                                                      {DatasetName::Criteo, "criteo"},
                                                      {DatasetName::Words, "words"}}};
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
static constexpr Names<Gathers, 2> kGathers = {{{Gathers::Again, "again"}, {Gathers::Once, "once"}}};
static constexpr Names<FloatType, 2> kFloats = {
    {{FloatType::Float32, "float32"}, {FloatType::Float64, "float64"}}};
static constexpr Names<RowType, 2> kRowTypes = {
    {{RowType::Float32, "float32"}, {RowType::BFloat16, "bfloat16"}}};
static constexpr Names<RowsBegin, 4> kRowsBegin = {{{RowsBegin::Model, "model"},
                                                    {RowsBegin::Constant, "constant"},
                                                    {RowsBegin::Uniform, "uniform"},
                                                    {RowsBegin::Normal, "normal"}}};
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

// Enums that are named where they are defined. `All` is a list of them.
template <const auto& All, class Enum>
static Choice named_choice(Enum& target) {
  Choice result = {.names = {},
                   .set = [](void* at, std::size_t index) { *static_cast<Enum*>(at) = All[index]; },
                   .get =
                       [](const void* at) {
                         return static_cast<std::size_t>(
                             std::ranges::find(All, *static_cast<const Enum*>(at)) - All.begin());
                       },
                   .target = &target};
  for (const Enum value : All) result.names.push_back(name_of(value));
  return result;
}

static constexpr std::array kRowRules = {ps::RowRule::Sgd,        ps::RowRule::Momentum, ps::RowRule::Adagrad,
                                         ps::RowRule::RowAdagrad, ps::RowRule::Adam,     ps::RowRule::RowAdam,
                                         ps::RowRule::RmsProp,    ps::RowRule::Ftrl};
static constexpr std::array kTableModes = {ps::Mode::Sync, ps::Mode::Async, ps::Mode::HalfAsync,
                                           ps::Mode::Geo};
static constexpr std::array kAdmissions = {ps::AdmissionRule::Always, ps::AdmissionRule::Count,
                                           ps::AdmissionRule::Probability, ps::AdmissionRule::Score};

// The name of a key of that number in a list, for as long as the process lives.
static std::string_view key_in_list(std::size_t number, std::string_view key) {
  static std::mutex mutex;
  static std::set<std::string> names;  // their places are fixed
  const std::lock_guard lock(mutex);
  return *names.insert(concat(number, '.', key)).first;
}

static void append(std::vector<Option>& options, std::size_t number, Annotation& annotation) {
  const auto key = [&](std::string_view name) { return key_in_list(number, name); };
  options.push_back({"annotate", key("modules"), &annotation.modules, 0, 0,
                     "names, with * for what is between dots: their matrices are cut"});
  options.push_back(
      {"annotate", key("split"), &annotation.split, 0, 1e6, "over so many ranks; 0: as many as there are"});
}

static void append(std::vector<Option>& options, std::size_t number, TableSettings& table) {
  const auto key = [&](std::string_view name) { return key_in_list(number, name); };
  options.insert(
      options.end(),
      {{"tables", key("parameters"), &table.parameters, 0, 0, "names, with * for what is between dots"},
       {"tables", key("optimizer"), named_choice<kRowRules>(table.optimizer), 0, 0, "what updates a row"},
       {"tables", key("lr"), &table.lr, 0, 1e3, "times what lr_scheduler says"},
       {"tables", key("beta1"), &table.beta1, 0, 1, "momentum, adam"},
       {"tables", key("beta2"), &table.beta2, 0, 1, "adam, rms_prop"},
       {"tables", key("eps"), &table.eps, 0, 1e3, "added to the root; of ftrl: its beta"},
       {"tables", key("start"), &table.start, 0, 1e9, "what sums of squares begin with"},
       {"tables", key("l1"), &table.l1, 0, 1e9, "ftrl"},
       {"tables", key("l2"), &table.l2, 0, 1e9, "added to the gradient of rows of the batch"},
       {"tables", key("initial"), choice<kRowsBegin>(table.initial), 0, 0,
        "rows begin as the model's, or by themselves with scale"},
       {"tables", key("scale"), &table.scale, -1e9, 1e9, "constant, half a range, deviation"},
       {"tables", key("dtype"), choice<kRowTypes>(table.dtype), 0, 0, "of rows where they are"},
       {"tables", key("admission"), named_choice<kAdmissions>(table.admission), 0, 0, "which ids get a row"},
       {"tables", key("threshold"), &table.threshold, 0, 4095, "of pushes, chance or score"},
       {"tables", key("scored"), &table.scored, 0, 0, "rows have a score of shows and clicks"},
       {"tables", key("clicks"), &table.clicks, 0, 0,
        "of scored rows: the input with each sample's, as targets"},
       {"tables", key("show_weight"), &table.show_weight, 0, 1e9, "of a show without a click"},
       {"tables", key("click_weight"), &table.click_weight, 0, 1e9, "of a click"},
       {"tables", key("decay"), &table.decay, 1e-9, 1, "of scores, a day"},
       {"tables", key("min_score"), &table.min_score, 0, 1e9, "rows below it go"},
       {"tables", key("max_unseen_days"), &table.max_unseen_days, 0, 1e9,
        "rows unseen for longer go; 0: none"},
       {"tables", key("max_rows"), &table.max_rows, 0, 1e18, "those of the lowest score go; 0: none"},
       {"tables", key("max_bytes"), &table.max_bytes, 0, 1e18, "likewise, of rows; 0: none"},
       {"tables", key("slot_days"), &table.slot_days, 0, 0,
        "max_unseen_days of slots (fields), as \"3:7 12:30\": slot:days"},
       {"tables", key("slot_bits"), &table.slot_bits, 1, 62, "of an id's 63, the highest are its slot"}});
}

std::vector<Option> options_of(Recipe& recipe) {
  auto& [job, model, dataset, training, parallelism, zero, planner, memory, precision, recompute, offload,
         optimizer, lr_scheduler, metrics, checkpoint, profiling, validation, annotate, tables, ps, verify,
         sample, command] = recipe;
  std::vector<Option> options = {
      {"job", "dump_folder", &job.dump_folder, 0, 0, "where results go"},
      {"model", "name", &model.name, 0, 0,
       "bert, dcn, deepfm, dlrm, gpt2, llama, lstm, mlp, resnet, t5, vit, wide_deep or word2vec"},
      {"model", "flavor", &model.flavor, 0, 0, "a published size, which the keys below change"},
  };
  append_model(options, model.config);
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
       {"dataset", "samples", &dataset.samples, 1, 1e15, "of an epoch of clicks"},
       {"dataset", "held_out", &dataset.held_out, 1, 1e12, "samples of clicks and criteo, never trained on"},
       {"dataset", "world", &dataset.world, 0, 9e18, "seed of what draws clicks"},
       {"dataset", "modulus", &dataset.modulus, 0, 9e18,
        "ids of a field are taken modulo it; 0: they are not"},
       {"dataset", "in_memory", &dataset.in_memory, 0, 0, "an epoch of clicks is made before the first step"},
       {"dataset", "window", &dataset.window, 1, 1e4, "words on each side of a word"},
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
        "that have stages of the model; -1: the rest"},
       {"parallelism", "pipeline_parallel_schedule", &parallelism.pipeline_parallel_schedule, 0, 0,
        "gpipe, 1f1b, eager_1f1b, zb_h1, zb_h2; looped_bfs, interleaved_1f1b, zbv, dualpipev with two stages "
        "a rank; a FILE.csv in PyTorch's letters; \"\": the plan's, or 1f1b"},
       {"parallelism", "pipeline_parallel_stages_per_rank", &parallelism.pipeline_parallel_stages_per_rank, 0,
        1e6, "of interleaved_1f1b and looped_bfs; 0: the plan's, or the schedule's"},
       {"parallelism", "pipeline_parallel_microbatches", &parallelism.pipeline_parallel_microbatches, 0, 1e9,
        "of a batch; 0: the plan's, or a stage each"},
       {"parallelism", "plan", &parallelism.plan, 0, 0, "file that says how layers are cut"},
       {"planner", "tensor_batch", &planner.tensor_batch, 0, 0,
        "the tensor axis may cut the batch, where no other does, and leave matrices whole"},
       {"planner", "zero", &planner.zero, 0, 0,
        "of ZeRO stage 2: which parameters are kept in parts too is found, as planner.kept has room"},
       {"planner", "kept", &planner.kept, 0, 0,
        "most bytes of the model's parameters on a rank: 300MiB; \"\": any"},
       {"planner", "budget", &planner.budget, 0, 1e9,
        "seconds of search, after which the best so far is taken; 0: as many as it takes"},
       {"planner", "cluster", &planner.cluster, 0, 0,
        "file of the machines that placements are found for; \"\": typical ones"},
       {"zero", "stage", &zero.stage, -1, 3, "0 to 3; -1: 3 where the shard degree is above 1"},
       {"zero", "gathers", choice<kGathers>(zero.gathers), 0, 0,
        "of parameters in parts: again for backward, or once, in forward, and whole until then"},
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
       {"precision", "reduce", &precision.reduce, 0, 0,
        "of gradients between ranks: float32; bfloat16, float16: half of the bytes"},
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
       {"profiling", "cluster", &profiling.cluster, 0, 0,
        "a file of shoal calibrate: 20 steps beside what is simulated"},
       {"profiling", "timeline", &profiling.timeline, 0, 0,
        "an HTML page to write: a step, and below it the one that cluster plays"},
       {"validation", "freq", &validation.freq, 0, 1e12, "steps between validations; 0: only at the end"},
       {"validation", "steps", &validation.steps, 1, 1e12, "batches of each; the last one takes all"},
       {"ps", "servers", &ps.servers, 0, 1024, "processes that have the [[tables]]; 0: in this one"},
       {"ps", "threads", &ps.threads, 1, 1024, "of each server"},
       {"ps", "copies", &ps.copies, 1, 2, "of each row, on two servers: one may end; one server has one"},
       {"ps", "parts", &ps.parts, 1, 1024,
        "of the keys, at least one a thread of a server: as many threads can share them (ps add)"},
       {"ps", "mode", named_choice<kTableModes>(ps.mode), 0, 0, "whether ranks wait for each other's rows"},
       {"ps", "staleness", &ps.staleness, 0, 1000, "half_async: steps that a row may lack"},
       {"ps", "geo_steps", &ps.geo_steps, 1, 1e6, "geo: steps that a rank trains rows by itself"},
       {"ps", "cache_rows", &ps.cache_rows, 0, 1e9, "of a table, kept by a rank; 0: none"},
       {"ps", "prefetch", &ps.prefetch, 0, 0, "sync: rows of the next batch are asked for during a step"},
       {"ps", "wire_dtype", choice<kRowTypes>(ps.wire_dtype), 0, 0,
        "as what rows and gradients travel; bfloat16 is half the bytes, to the nearest"},
       {"ps", "day_steps", &ps.day_steps, 0, 1e12,
        "steps a day, after which scores decay and rows go; 0: no days"},
       {"ps", "save_deltas", &ps.save_deltas, 0, 1e6,
        "checkpoints between two with all rows, that have those that changed"},
       {"ps", "memory", &ps.memory, 0, 0,
        "of each table, over all servers, as 8GiB; other rows lie on disk; empty: any"},
       {"ps", "cold_folder", &ps.cold_folder, 0, 0, "where those lie; empty: cold, in job.dump_folder"},
       {"verify", "steps", &verify.steps, 1, 1e6, "that shoal verify compares"},
       {"sample", "tokens", &sample.tokens, 0, 1e6, "length of the text written at the end; 0: none"},
       {"sample", "temperature", &sample.temperature, 1e-3, 1e3, "below 1: likelier tokens"},
       {"sample", "top_k", &sample.top_k, 1, 1e9, "of the likeliest tokens only"},
       {"sample", "prompt", &sample.prompt, 0, 0, "what the text begins with"},
       {"sample", "prompt_tokens", &sample.prompt_tokens, 0, 1e9, "what it begins with, as token ids"},
       {"sample", "inputs_file", &sample.inputs_file, 0, 0,
        "generate: safetensors of inputs, for logits alone"},
       {"sample", "logits_file", &sample.logits_file, 0, 0, "generate: where the logits go"}});
  for (std::size_t i = 0; i < annotate.size(); ++i) append(options, i, annotate[i]);
  for (std::size_t table = 0; table < tables.size(); ++table) append(options, table, tables[table]);
  return options;
}

namespace {

struct ToText {
  std::string operator()(const std::string* text) const { return in_quotes(*text); }
  std::string operator()(const Choice& choice) const {
    return in_quotes(choice.names[choice.get(choice.target)]);
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
