// SPDX-License-Identifier: Apache-2.0
// shoal train: reads the text, trains, validates, and leaves its results in job.dump_folder:
//
//   metrics.jsonl   a line a step and a line a validation, there as soon as it is printed
//   results.json    what was reached, beside the trigram model; sample.txt; trace.json with profiling
//   loss.svg        how the loss fell; tb/ the same for TensorBoard, if it is asked for
//   checkpoint/     what a later run goes on from
//   tokens.bin      the tokenised text, for the next run
//
// Ctrl-C ends the loop after the step that is running; the results so far are then written like any others.
// SIGTERM, which a scheduler sends some seconds before the end, ends the step, saves, says how to go on, and
// no more. Of several ranks each trains on its share of every batch; the first one writes and prints.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/ParallelGuard.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/device.h"
#include "shoal/cli/forecast.h"
#include "shoal/cli/memory_log.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"
#include "shoal/data/prefetch.h"
#include "shoal/observe/chrome_trace.h"
#include "shoal/observe/file.h"
#include "shoal/observe/loss_curve.h"
#include "shoal/observe/summary.h"
#include "shoal/observe/tensorboard.h"
#include "shoal/runtime/allocator.h"

namespace shoal::cli {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// The signal that came, or 0. Written by the signal handler, which may do no more than this.
static volatile std::sig_atomic_t interrupted = 0;

static void interrupt(int signal) { interrupted = signal; }

namespace {

// Takes Ctrl-C and SIGTERM once each; the second one ends the process as ever.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted = 0;
    struct sigaction action = {};
    action.sa_handler = interrupt;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &before_);
    ::sigaction(SIGTERM, &action, &before_termination_);
  }
  ~InterruptGuard() {
    ::sigaction(SIGINT, &before_, nullptr);
    ::sigaction(SIGTERM, &before_termination_, nullptr);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_ = {};
  struct sigaction before_termination_ = {};
};

struct Validation {
  double loss = 0;
  std::optional<double> bits_per_byte;
};

struct Run {
  const Recipe& recipe;
  const Task& task;
  Learner& learner;
  RunCheckpoints& checkpoints;
  const Ranks& ranks;
  StepSizes sizes;
  observe::LineFile* metrics;  // null on ranks other than the first, which write and print nothing
  std::filesystem::path folder;
  Progress progress;
  std::optional<double> flops_per_unit = {};
  double peak_flops_per_second = 0;
  std::int64_t first_step = 0;  // before it
  double seconds = 0;           // of training alone
  double seconds_waited = 0;    // for data, of these
  double seconds_saving = 0;    // that training stood still, not of these
  observe::EventFile* events = nullptr;
  std::vector<observe::Point> losses = {};
  std::vector<observe::Point> validation_losses = {};
  MemoryLog* memory = nullptr;
  std::int64_t predicted_bytes = 0;
};

}  // namespace

static std::int64_t units_per_step(const Run& run) { return run.task.units_per_sample * run.sizes.samples(); }

static double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

static double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

static std::int64_t num_parameters(const torch::nn::Module& module) {
  std::int64_t total = 0;
  for (const at::Tensor& parameter : module.parameters()) total += parameter.numel();
  return total;
}

// Of forward and backward, by the model's matrix products alone, as torchtitan counts: 6 for each weight and
// token, and attention's two products over the sequence. Where a weight works more or less than once a unit,
// as a convolution's, a table's or an encoder's does, there is no such figure.
static std::optional<double> flops_per_unit(const Recipe& recipe, const torch::nn::Module& module) {
  const auto parameters = static_cast<double>(num_parameters(module));
  const auto attention = [&](std::int64_t layers, std::int64_t width) {
    return 12.0 * static_cast<double>(layers * width * recipe.training.seq_len);
  };
  if (!counts_flops(recipe)) return std::nullopt;
  if (std::holds_alternative<models::MlpConfig>(recipe.model.config)) return 6 * parameters;
  if (const auto* gpt2 = std::get_if<models::Gpt2Config>(&recipe.model.config))
    return 6 * (parameters - static_cast<double>(gpt2->n_positions * gpt2->n_embd)) +
           attention(gpt2->n_layer, gpt2->n_embd);
  if (const auto* llama = std::get_if<models::LlamaConfig>(&recipe.model.config)) {
    const std::int64_t lookups = llama->tie_word_embeddings ? 0 : llama->vocab_size * llama->hidden_size;
    return 6 * (parameters - static_cast<double>(lookups)) +
           attention(llama->num_hidden_layers, llama->num_attention_heads * models::head_dim(*llama));
  }
  return std::nullopt;
}

// The best of a few products of large matrices: what mfu is a share of.
static double measured_peak_flops_per_second(at::ScalarType type) {
  constexpr std::int64_t kSize = kMeasuredMatrix;
  constexpr int kRuns = 8;
  const at::Tensor a = at::ones({kSize, kSize}, type);
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = Clock::now();
    at::mm(a, a);
    best = std::max(best, 2.0 * std::pow(kSize, 3) / seconds_since(begin));
  }
  return best;
}

static Validation validate(Run& run, std::int64_t most_batches) {
  const HeldOut& held_out = run.task.held_out;
  const std::int64_t num_batches = std::min(most_batches, held_out.num_batches);
  double nats = 0;
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < num_batches; ++i) {
    // Spread over the whole text, so that a few batches speak for all.
    const std::int64_t index = i * held_out.num_batches / num_batches;
    const std::int64_t count = held_out.num_targets(index);
    const Batch batch = part_of(held_out.batch(index), run.ranks.part_of(run.sizes.microbatch));
    nats += run.learner.trainer.evaluate(batch) * static_cast<double>(count);
    targets += count;
  }
  Validation result = {.loss = nats / static_cast<double>(targets)};
  if (held_out.num_bytes > 0) {
    std::int64_t all_targets = 0;
    for (std::int64_t i = 0; i < held_out.num_batches; ++i) all_targets += held_out.num_targets(i);
    const double bytes_per_target =
        static_cast<double>(held_out.num_bytes) / static_cast<double>(all_targets);
    result.bits_per_byte = result.loss / std::log(2.0) / bytes_per_target;
  }
  return result;
}

static std::string three_digits(double number) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.3f", number);
  return text;
}

// A model may write any bytes: a terminal gets UTF-8 without control characters.
static std::string shown(const std::string& sample) {
  auto text =
      json::parse(json(sample).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
  for (char& c : text)
    if ((c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  return text;
}

static void report(Run& run, const Validation& validation) {
  if (run.metrics == nullptr) return;
  json line = {{"step", run.progress.step}, {"validation_loss", validation.loss}};
  std::string text = concat("validate step: ", run.progress.step, "  loss: ", three_digits(validation.loss));
  if (validation.bits_per_byte) {
    line["validation_bits_per_byte"] = *validation.bits_per_byte;
    text += "  bits per byte: " + three_digits(*validation.bits_per_byte);
  }
  run.metrics->write(line.dump());
  run.validation_losses.push_back({run.progress.step, validation.loss});
  if (run.events != nullptr)
    run.events->write(seconds_since_1970(), run.progress.step,
                      {{"validation_metrics/loss", validation.loss}});
  say(text);
}

// The gradients of the last step are not kept beside what an evaluation makes.
static void validate_now(Run& run) {
  run.memory->end("steps");
  run.learner.trainer.release();
  report(run, validate(run, run.recipe.validation.steps));
  run.memory->end("validation");
}

using Microbatches = std::vector<Batch>;

// What this rank reads of the step that begins at a position of the data.
static Microbatches microbatches_at(const Run& run, std::int64_t position) {
  const c10::ParallelGuard one_thread(true);  // the step has the others
  Microbatches batches;
  const std::int64_t samples = run.sizes.microbatch;
  for (std::int64_t i = 0; i < run.sizes.num_microbatches; ++i)
    batches.push_back(run.task.batch(
        {.position = position + i * samples, .samples = samples, .part = run.ranks.part_of(samples)}));
  return batches;
}

// Makes batches ahead on a thread, if the recipe wants that, and measures how long a step waits for them.
class BatchSource {
 public:
  BatchSource(const Run& run, std::int64_t position)
      : make_([&run, position](std::int64_t index) {
          return microbatches_at(run, position + index * run.sizes.samples());
        }) {
    if (const std::int64_t prefetch = run.recipe.dataset.prefetch; prefetch > 0)
      prefetcher_.emplace(make_, 0, kThreads, static_cast<int>(prefetch));
  }

  Microbatches next() {
    const auto begin = Clock::now();
    Microbatches batches = prefetcher_ ? prefetcher_->next() : make_(index_++);
    seconds_waited_ += seconds_since(begin);
    return batches;
  }
  double seconds_waited() const { return seconds_waited_; }

 private:
  static constexpr int kThreads = 1;  // a batch costs far less than a step
  std::function<Microbatches(std::int64_t)> make_;
  std::optional<data::Prefetcher<Microbatches>> prefetcher_;
  std::int64_t index_ = 0;
  double seconds_waited_ = 0;
};

static void write_metrics(Run& run, const StepResult& result, double tps) {
  run.metrics->write(json{{"step", result.step},
                          {"loss", result.loss},
                          {"grad_norm", result.grad_norm},
                          {"lr", result.learning_rate},
                          {"tps", tps},
                          {"memory_bytes", observe::peak_memory_bytes()}}
                         .dump());
  if (run.events != nullptr)
    run.events->write(seconds_since_1970(), result.step,
                      {{"loss_metrics/loss", result.loss},
                       {"grad_norm", result.grad_norm},
                       {"lr", result.learning_rate},
                       {"throughput(tps)", tps}});
}

// Whether a signal has come, to any rank.
static bool is_interrupted(const Run& run) {
  const auto signal = static_cast<int>(run.ranks.largest(interrupted));
  if (signal != 0) interrupted = signal;
  return signal != 0;
}

// Trains to the last step, or to the step in which a signal came.
static void train_steps(Run& run) {
  const Recipe& recipe = run.recipe;
  const auto units = static_cast<double>(units_per_step(run));
  BatchSource batches(run, run.progress.position);
  double since_line = 0;
  std::int64_t steps_since_line = 0;
  while (run.progress.step < recipe.training.steps && !is_interrupted(run)) {
    const auto begin = Clock::now();
    const Microbatches microbatches = batches.next();
    const StepResult result = microbatches.size() == 1 ? run.learner.trainer.step(microbatches[0])
                                                       : run.learner.trainer.step_over(microbatches);
    const double seconds = seconds_since(begin);
    run.progress = {
        .step = result.step, .position = run.progress.position + run.sizes.samples(), .loss = result.loss};
    run.seconds += seconds;
    run.losses.push_back({result.step, result.loss});
    since_line += seconds;
    ++steps_since_line;
    if (run.metrics != nullptr) write_metrics(run, result, units / seconds);
    if (run.metrics != nullptr &&
        (result.step == run.first_step + 1 || result.step % recipe.metrics.log_freq == 0)) {
      observe::StepSummary summary = {.step = result.step,
                                      .loss = result.loss,
                                      .grad_norm = result.grad_norm,
                                      .memory_bytes = observe::peak_memory_bytes()};
      summary.tokens_per_second = units * static_cast<double>(steps_since_line) / since_line;
      summary.seconds_left = static_cast<double>(recipe.training.steps - result.step) * since_line /
                             static_cast<double>(steps_since_line);
      if (run.flops_per_unit) {
        summary.flops_per_second = *run.flops_per_unit * summary.tokens_per_second;
        // The machine may have been busy when it was measured.
        run.peak_flops_per_second = std::max(run.peak_flops_per_second, *summary.flops_per_second);
        summary.peak_flops_per_second = run.peak_flops_per_second;
      }
      say(observe::to_line(summary));
      run.memory->look();
      since_line = 0;
      steps_since_line = 0;
    }
    const auto saving = Clock::now();
    run.checkpoints.after(run.progress);
    run.seconds_saving += seconds_since(saving);
    const bool is_last = run.progress.step == recipe.training.steps;
    if (recipe.validation.freq > 0 && result.step % recipe.validation.freq == 0 && !is_last &&
        !is_interrupted(run))
      validate_now(run);
  }
  run.seconds_waited = batches.seconds_waited();
  run.memory->end("steps");
}

// Says it too.
static json memory_in(const Run& run, std::int64_t most_of_others) {
  const MemoryLog::Phase& largest = run.memory->largest();
  const std::int64_t most = std::max(most_of_others, largest.peak);
  json memory = {{"predicted_bytes", run.predicted_bytes},
                 {"peak_bytes", most},
                 {"proportional_bytes", run.memory->proportional()},
                 {"phases", json::object()}};
  for (const auto& [name, peak] : run.memory->phases()) memory["phases"][name] = peak;
  say(concat("memory:  ", human_bytes(most), run.ranks.size() > 1 ? " of a rank" : "", " at most, for ",
             largest.name, "; predicted ", human_bytes(run.predicted_bytes), "; the process grew by ",
             human_bytes(run.memory->proportional())));
  return memory;
}

static void write_results(Run& run, const observe::Trace& trace, double seconds_in_all) {
  run.learner.trainer.release();
  const Validation all = validate(run, run.task.held_out.num_batches);
  run.memory->end("validation");
  run.learner.trainer.end();  // what follows reads the model itself
  run.memory->end("the model, gathered");
  const std::int64_t most = run.ranks.largest(run.memory->largest().peak);
  if (run.metrics == nullptr) return;
  report(run, all);
  json results = {
      {"model", run.recipe.model.name},     {"parameters", num_parameters(*run.learner.model.ptr())},
      {"data", run.task.description},       {"steps", run.progress.step},
      {"interrupted", interrupted != 0},    {"seed", run.recipe.training.seed},
      {"ranks", run.ranks.size()},          {"threads", at::get_num_threads()},
      {"training_loss", run.progress.loss}, {"validation_loss", all.loss},
      {"training_seconds", run.seconds},    {"memory_bytes", observe::peak_memory_bytes()}};
  if (run.seconds > 0) {
    const auto steps = static_cast<double>(run.progress.step - run.first_step);
    results[run.task.unit + "_per_second"] = steps * static_cast<double>(units_per_step(run)) / run.seconds;
    results["data_wait_share"] = run.seconds_waited / run.seconds;
    results["checkpoint_stall_seconds"] = run.seconds_saving;
    say(concat("waited for data: ", three_digits(100 * run.seconds_waited / run.seconds),
               "% of the training time"));
  }
  if (all.bits_per_byte && run.task.trigram_bits_per_byte) {
    results["bits_per_byte"] = *all.bits_per_byte;
    results["trigram_bits_per_byte"] = *run.task.trigram_bits_per_byte;
    say(concat("held-out bits per byte: ", three_digits(*all.bits_per_byte),
               "  (byte trigram model: ", three_digits(*run.task.trigram_bits_per_byte), ")"));
  }
  if (run.task.target_counts.defined()) {
    for (const Measure& measure : measures_of(run.learner.model, run.task)) {
      results["measures"][measure.name] = {
          {"value", measure.value}, {"baseline", measure.baseline}, {"baseline_name", measure.baseline_name}};
      say(concat("held-out ", measure.name, ": ", three_digits(measure.value), "  (", measure.baseline_name,
                 ": ", three_digits(measure.baseline), ")"));
    }
  }
  if (run.task.sample) {
    const std::string sample = run.task.sample(run.learner.model);
    observe::write_file(run.folder / "sample.txt", sample);
    say(concat("\nsample:\n", shown(sample), "\n"));
    say(concat("sample:  ", (run.folder / "sample.txt").string()));
  }
  run.memory->end("results");
  results["memory"] = memory_in(run, most);
  if (run.recipe.profiling.enable_profiling) {
    observe::write_file(run.folder / "trace.json", observe::chrome_trace(trace));
    say(concat("trace:   ", (run.folder / "trace.json").string()));
  }
  observe::write_file(run.folder / "loss.svg", observe::loss_curve(run.losses, run.validation_losses,
                                                                   run.recipe.model.name + ": loss by step"));
  results["seconds"] = seconds_in_all;
  observe::write_file(run.folder / "results.json",
                      results.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
  say(concat("metrics: ", run.metrics->path().string()));
  say(concat("results: ", (run.folder / "results.json").string()));
}

// The lines of the steps up to this one: a run that was killed wrote lines of steps that are now made again.
static std::string lines_up_to(std::int64_t step, const std::filesystem::path& path, Run* run) {
  std::string kept, line;
  std::ifstream file(path);
  while (std::getline(file, line)) {
    const json values = json::parse(line, nullptr, false);  // the last one may be cut off
    if (!values.is_object() || values.value("step", step + 1) > step) continue;
    kept += line + "\n";
    if (run == nullptr) continue;
    const auto at = values.value("step", std::int64_t{0});
    if (values.contains("loss")) run->losses.push_back({at, values.value("loss", 0.0)});
    if (values.contains("validation_loss"))
      run->validation_losses.push_back({at, values.value("validation_loss", 0.0)});
  }
  return kept;
}

static void describe(const Run& run) {
  // Looks at a micro-batch, as the ranks do: together.
  std::optional<std::string> weighing;
  if (run.sizes.num_microbatches > 1)
    weighing = run.learner.trainer.weighing(microbatches_at(run, run.progress.position)[0]);
  if (run.metrics == nullptr) return;
  const torch::nn::Module& module = *run.learner.model.ptr();
  say(concat("model:   ", run.recipe.model.name, ", ", observe::with_commas(num_parameters(module)),
             " parameters"));
  say(concat("data:    ", run.task.description));
  say(concat("steps:   ", observe::with_commas(run.recipe.training.steps), " of ",
             observe::with_commas(units_per_step(run)), " ", run.task.unit, " (tps counts ", run.task.unit,
             ")"));
  if (weighing)
    say(concat("batch:   ", run.sizes.samples(), " in micro-batches of ", run.sizes.microbatch, "; ",
               *weighing));
  if (run.ranks.size() > 1)
    say(concat("ranks:   ", run.ranks.size(), ", ", to_text(run.ranks.mesh()), "; ", run.sizes.microbatch,
               " samples are shared among ", data_ranks_of(run.ranks.said())));
  std::string device =
      concat("device:  cpu, ", at::get_num_threads(), " threads", run.ranks.size() > 1 ? " each" : "");
  if (run.flops_per_unit)
    device += concat(", peak ", three_digits(run.peak_flops_per_second / 1e12),
                     " tflops measured by matrix products (mfu is a share of it)");
  say(device);
}

static std::string how_to_go_on(const Recipe& recipe, int ranks) {
  const bool is_said = recipe.command.find("checkpoint.enable=true") != std::string::npos;
  return concat("go on with: shoal train ", ranks > 1 ? concat("-n ", ranks, " ") : "", recipe.command,
                is_said ? "" : " --checkpoint.enable=true");
}

// Returns how many ranks run at once at full speed.
static double share_cores(int ranks) {
  const int cores = at::get_num_threads();
  if (ranks == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return ranks;
  at::set_num_threads(threads_of_rank(ranks));
  return std::min<double>(ranks, cores);
}

// Its batches are the micro-batches of all ranks together. The first rank may have to write what the others
// then read.
static Task make_task(Recipe recipe, const StepSizes& sizes, const Ranks& ranks) {
  recipe.training.local_batch_size = sizes.microbatch;
  std::optional<Task> task;
  if (ranks.is_first()) task = make_task(recipe);
  ranks.largest(0);  // all are here
  return task ? std::move(*task) : make_task(recipe);
}

// The most of any rank. Throws where that is above the limit.
static std::int64_t predicted(const Recipe& recipe, const Ranks& ranks) {
  const std::int64_t beside = runtime::memory_counts().live_bytes;  // what the task keeps
  Phase largest = forecast_of(recipe, ranks.said(), ranks.rank(), at::get_num_threads()).largest();
  largest.bytes = ranks.largest(largest.bytes);
  check_limit(recipe, largest, beside);
  return largest.bytes + beside;
}

int train(const Recipe& recipe, const Options& options) {
  if (options.ranks > 0) {
    device_of(recipe);  // before there are ranks that would say it one by one
    if (!recipe.memory.limit.empty())
      check_limit(
          recipe,
          forecast_of(recipe, parallelism_of(recipe, options.ranks), 0, threads_of_rank(options.ranks))
              .largest(),
          0);
    return start_ranks("train", options);
  }
  const auto begin = Clock::now();
  const InterruptGuard guard;
  MemoryLog memory;
  const Ranks ranks(recipe, elastic::environment_of(environ));
  const double at_once = share_cores(ranks.ranks_of_this_host()) * ranks.size() / ranks.ranks_of_this_host();
  ranks.check_same(recipe);
  const std::filesystem::path folder = recipe.job.dump_folder;
  if (ranks.is_first_of_host()) observe::make_folder(folder);
  std::optional<FolderLock> lock;
  if (ranks.is_first()) lock.emplace(folder);
  DiskFileSystem files;
  observe::Trace trace;
  const StepSizes sizes = sizes_of(recipe, ranks.said());
  const Task task = make_task(recipe, sizes, ranks);
  memory.end("data");
  const std::int64_t predicted_bytes = predicted(recipe, ranks);
  observe::Trace* traced = recipe.profiling.enable_profiling && ranks.is_first() ? &trace : nullptr;
  Learner learner = make_learner(recipe, traced, ranks.parallelism());
  memory.end("model");
  RunCheckpoints checkpoints(recipe, task, learner, files, ranks);
  const Progress progress = checkpoints.begin();
  Run run = {.recipe = recipe,
             .task = task,
             .learner = learner,
             .checkpoints = checkpoints,
             .ranks = ranks,
             .sizes = sizes,
             .metrics = nullptr,
             .folder = folder,
             .progress = progress,
             .first_step = progress.step,
             .memory = &memory,
             .predicted_bytes = predicted_bytes};
  std::optional<observe::LineFile> metrics;
  std::optional<observe::EventFile> events;
  if (ranks.is_first()) {
    const std::filesystem::path path = folder / "metrics.jsonl";
    if (progress.step > 0) observe::write_file(path, lines_up_to(progress.step, path, nullptr));
    run.metrics = &metrics.emplace(
        path, progress.step > 0 ? observe::LineFile::Begin::Continue : observe::LineFile::Begin::Empty);
    if (recipe.metrics.enable_tensorboard)
      run.events = &events.emplace(folder / recipe.metrics.save_tb_folder, seconds_since_1970());
    if (progress.step > 0) lines_up_to(progress.step, path, &run);
    run.flops_per_unit = flops_per_unit(recipe, *learner.model.ptr());
    const auto type = recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat;
    if (run.flops_per_unit) run.peak_flops_per_second = at_once * measured_peak_flops_per_second(type);
  }
  describe(run);

  memory.end("begin");
  train_steps(run);
  const auto signal = static_cast<int>(ranks.largest(interrupted));  // what all ranks go by from here
  const bool is_terminated = signal == SIGTERM;
  bool is_saved = false;
  if ((recipe.checkpoint.enable || is_terminated) && run.progress.step > 0)
    is_saved = checkpoints.save_and_wait(run.progress);
  const auto tell = [&](const std::string& line) {
    if (ranks.is_first()) say(line);
  };
  if (signal != 0)
    tell(concat(is_terminated ? "terminated" : "interrupted", " after step ", run.progress.step, " of ",
                recipe.training.steps, is_saved ? "; " + how_to_go_on(recipe, ranks.size()) : ""));
  if (is_terminated) return kTerminatedCode;
  if (signal != 0) tell("writing what there is (Ctrl-C again to stop at once)");
  write_results(run, trace, seconds_since(begin));
  return interrupted == 0 ? 0 : interrupted == SIGTERM ? kTerminatedCode : kInterruptedCode;
}

}  // namespace shoal::cli
