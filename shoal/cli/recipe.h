// SPDX-License-Identifier: Apache-2.0
// A recipe: what to train and how, as plain structs. Names are torchtitan's where it has one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/configs.h"
#include "shoal/ps/definition.h"
#include "shoal/ps/exchange.h"
#include "shoal/rewrite/precision.h"
#include "shoal/rewrite/recompute.h"

namespace shoal::cli {

inline constexpr std::int64_t kComparedSteps = 20;  // with what is simulated of them

enum class DatasetName {
  Text,
  Bytes,
  RandomImages,
  MaskedText,
  CorruptedText,
  Digits,
  Files,
  Clicks,
  Criteo,
  Words
};
enum class OptimizerName { SGD, Adam, AdamW, Adagrad, RMSprop, Lion, LAMB };
enum class StateType { Float32, BFloat16, UInt8 };
enum class DecayType { Constant, Linear, Cosine, WarmupStableDecay };
enum class AsyncMode { Disabled, Async };
enum class Gathers { Again, Once };
enum class FloatType { Float32, Float64 };
enum class RowType { Float32, BFloat16 };
enum class DeviceType { CPU, CUDA };

std::string_view name_of(DatasetName name);  // as a recipe has it

// What dataset.name = "files" tells of a file: so many numbers and categories.
inline constexpr std::int64_t kFileNumbers = 6;
inline constexpr std::int64_t kFileCategories = 6;

enum class RowsBegin { Model, Constant, Uniform, Normal };

// Of an [[annotate]]: modules whose matrices are cut over the axis that is found (compile/plan.h: split).
struct Annotation {
  std::string modules;
  std::int64_t split = 0;  // ranks of that axis; 0: as many as it has
};

// Of a [[tables]]: parameters whose rows are in tables, and what updates them (train/tables.h).
struct TableSettings {
  std::string parameters;
  ps::RowRule optimizer = ps::RowRule::Adagrad;
  double lr = 0.01, beta1 = 0.9, beta2 = 0.999, eps = 1e-10, start = 0, l1 = 0, l2 = 0;
  RowsBegin initial = RowsBegin::Model;
  double scale = 0.01;
  RowType dtype = RowType::Float32;
  ps::AdmissionRule admission = ps::AdmissionRule::Always;
  double threshold = 0;
  bool scored = false;
  std::string clicks;
  double show_weight = 0.1, click_weight = 1, decay = 1, min_score = 0;
  std::int64_t max_unseen_days = 0, max_rows = 0, max_bytes = 0;
  std::string slot_days;  // "3:7 12:30"
  std::int64_t slot_bits = ps::Life().slot_bits;
  friend bool operator==(const TableSettings&, const TableSettings&) = default;
};

struct Recipe {
  struct {
    std::string dump_folder = "outputs";
  } job;
  struct {
    std::string name = "gpt2";
    std::string flavor;
    models::Config config = models::Gpt2Config{};  // of the model that `name` says
  } model;
  struct {
    DatasetName name = DatasetName::Text;
    std::string path;  // a text file or a folder of them; "": what is found on the machine
    std::int64_t held_out_bytes = 128 << 10;
    std::int64_t image_size = 64;
    std::int64_t token_bytes = 2;      // of an id in a .bin file
    std::int64_t prefetch = 4;         // batches made ahead; 0: each when it is wanted
    std::int64_t samples = 4'000'000;  // of an epoch of clicks
    std::int64_t held_out = 200'000;   // samples of clicks, never trained on
    std::int64_t world = 3;            // the seed of what draws clicks
    std::int64_t modulus = 0;          // ids of a field are taken modulo this; 0: they are not
    bool in_memory = false;            // clicks of an epoch are made before the first step
    std::int64_t window = 5;           // words on each side of a word
  } dataset;
  struct {
    std::int64_t local_batch_size = 8;
    // Of all ranks; more than their local ones together is accumulated. -1: those together.
    std::int64_t global_batch_size = -1;
    std::int64_t seq_len = 128;
    std::int64_t steps = 100;
    double max_norm = 1.0;  // 0: gradients are not clipped
    std::int64_t seed = 0;
    FloatType dtype = FloatType::Float32;
    DeviceType device = DeviceType::CPU;
  } training;
  struct {
    // -1: the ranks that the other degrees leave. The mesh has its axes in this order, outer to inner.
    std::int64_t data_parallel_replicate_degree = -1;
    std::int64_t data_parallel_shard_degree = 1;
    std::int64_t tensor_parallel_degree = 1;
    std::int64_t pipeline_parallel_degree = 1;           // the outermost axis
    std::string pipeline_parallel_schedule;              // Plan::schedule; "": as the plan says
    std::int64_t pipeline_parallel_stages_per_rank = 0;  // Plan::stages_per_rank
    std::int64_t pipeline_parallel_microbatches = 0;     // Plan::microbatches
    std::string plan;                                    // a file; "": none
  } parallelism;
  struct {
    std::int64_t stage = -1;  // compile::Plan::zero_stage
    Gathers gathers = Gathers::Again;
  } zero;
  struct {
    bool tensor_batch = false;  // compile::Planner
    bool zero = false;
    std::string kept;  // "300MiB"; "": any
    double budget = 0;
    std::string cluster;  // file whose rates it is for; "": Planner's
  } planner;
  struct {
    std::string limit;  // of a rank, "2GiB"; "": none
    bool automatic = false;
  } memory;
  struct {
    std::string compute = "float32";  // rewrite::Precision
    std::string lower, full;          // ops, with spaces between them
    double scale = rewrite::Precision{}.scale;
    std::int64_t grows_after = rewrite::Precision{}.grows_after;
    rewrite::Master master = rewrite::Master::Float32;
    std::string reduce = "float32";  // of gradients, between ranks
  } precision;
  struct {
    rewrite::RecomputeMode mode = rewrite::RecomputeMode::None;
    std::string modules;  // paths with '*', and spaces between them; "": numbered ones
    std::string bytes;    // "96MiB"
    bool collectives = false;
  } recompute;
  struct {
    bool parameters = false, optimizer_state = false, gradients = false, activations = false;
    std::string least;   // "64KiB"; "": rewrite::Offload's
    std::string folder;  // Parallelism::offload_folder
  } offload;
  struct {
    OptimizerName name = OptimizerName::AdamW;
    double lr = 8e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double momentum = 0;
    bool nesterov = false;
    double alpha = 0.99;
    bool centered = false;
    StateType state_dtype = StateType::Float32;
  } optimizer;
  struct {
    std::int64_t warmup_steps = 0;
    DecayType decay_type = DecayType::Constant;
    double min_lr_factor = 0;
    std::int64_t decay_steps = 0;
  } lr_scheduler;
  struct {
    std::int64_t log_freq = 10;
    bool enable_tensorboard = false;
    std::string save_tb_folder = "tb";
  } metrics;
  struct {
    bool enable = false;
    std::string folder = "checkpoint";  // in job.dump_folder
    std::int64_t interval = 500;        // steps
    std::int64_t keep_latest_k = 10;    // 0: all
    AsyncMode async_mode = AsyncMode::Async;
    std::int64_t load_step = -1;    // -1: the newest whole one
    std::string initial_load_path;  // of weights alone, for a run that begins
  } checkpoint;
  struct {
    bool enable_profiling = false;
    std::string cluster;  // file; after kComparedSteps steps it is said how right it is
    // File: one of the first kComparedSteps steps as a page, and below it what is played on the cluster.
    std::string timeline;
  } profiling;
  struct {
    std::int64_t freq = 100;  // 0: only at the end
    std::int64_t steps = 8;   // batches at each of them; at the end it is all of the held-out text
  } validation;
  std::vector<Annotation> annotate;
  std::vector<TableSettings> tables;
  struct {
    std::int64_t servers = 0;  // processes that have the tables; 0: this one
    std::int64_t threads = 1;  // of each server
    std::int64_t copies = 2;   // of each row, on different servers; one where there is one server
    std::int64_t parts = 1;    // of the keys, which loops share; at least as many as loops
    ps::Mode mode = ps::Mode::Sync;
    std::int64_t staleness = 4;  // of half_async, in steps
    std::int64_t geo_steps = 20;
    std::int64_t cache_rows = 65536;  // of a table, in a rank
    bool prefetch = false;
    RowType wire_dtype = RowType::Float32;
    std::int64_t day_steps = 0;
    std::int64_t save_deltas = 0;  // checkpoints with rows that changed alone, between two with all
    std::string memory;            // of each table, over all servers; others lie on disk. Empty: any
    std::string cold_folder;       // where those lie; empty: in job.dump_folder
  } ps;
  struct {
    std::int64_t steps = 3;
  } verify;
  struct {
    std::int64_t tokens = 160;  // 0: no sample
    double temperature = 0.8;
    std::int64_t top_k = 40;
    std::string prompt = "def ";
    std::vector<std::int64_t> prompt_tokens;  // instead of the text, for a model with another tokenizer
    std::string inputs_file;                  // what `generate` reads instead of a prompt; "": nothing
    std::string logits_file;                  // where `generate` writes the prompt's logits; "": nowhere
  } sample;
  std::string command;  // the file and overrides that it was read from, as a shell takes them
};

// One value of an enum, as its place in a list of names.
struct Choice {
  std::vector<std::string_view> names;
  void (*set)(void* target, std::size_t index);
  std::size_t (*get)(const void* target);
  void* target;
};

using Target = std::variant<std::int64_t*, double*, bool*, std::string*, std::vector<std::int64_t>*, Choice>;

// A key of a recipe. The reader, the overrides, `--help` and the test that freezes the keys all go by this
// table.
struct Option {
  std::string_view section;
  std::string_view key;
  Target target;     // borrowed from the recipe
  double least = 0;  // of a number
  double most = 1e18;
  std::string_view help;
};

// The model's own keys are those of the variant that recipe.model.config holds; tables and annotations have theirs by
// number, "tables.0.lr".
std::vector<Option> options_of(Recipe& recipe);
std::string value_of(const Option& option);  // as TOML has it

// Reads a file and then the overrides, "--section.key=value" each. Throws InvalidInput that names key, file
// and line (or the override), and the nearest valid name.
Recipe read_recipe(const std::string& path, const std::vector<std::string>& overrides);
Recipe recipe_in(std::string_view text, const std::string& path, const std::vector<std::string>& overrides);

// Every key with its value, "section.key" → TOML: what a checkpoint keeps of the recipe that made it.
std::map<std::string, std::string> settings_of(const Recipe& recipe);
// The inverse. Keys that are not there keep their defaults; errors begin with `place`.
Recipe recipe_from(const std::map<std::string, std::string>& settings, const std::string& place);

}  // namespace shoal::cli
