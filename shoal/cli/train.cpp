// SPDX-License-Identifier: Apache-2.0
// shoal train: reads the text, trains, validates, and leaves its results in job.dump_folder:
//
//   metrics.jsonl   a line a step and a line a validation, there as soon as it is printed
//   results.json    what was reached, beside the trigram model; sample.txt; trace.json with profiling
//   tokens.bin      the tokenised text, for the next run
//
// Ctrl-C ends the loop after the step that is running; the results so far are then written like any others.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"
#include "shoal/observe/chrome_trace.h"
#include "shoal/observe/file.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Written by the signal handler, which may do no more than this.
static volatile std::sig_atomic_t interrupted = 0;

static void interrupt(int) { interrupted = 1; }

namespace {

// Takes Ctrl-C once; the second one ends the process as ever.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted = 0;
    struct sigaction action = {};
    action.sa_handler = interrupt;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &before_);
  }
  ~InterruptGuard() { ::sigaction(SIGINT, &before_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_ = {};
};

struct Validation {
  double loss = 0;
  std::optional<double> bits_per_byte;
};

struct Run {
  const Recipe& recipe;
  Task task;
  Learner learner;
  observe::LineFile metrics;
  std::filesystem::path folder;
  std::optional<double> flops_per_unit;
  double peak_flops_per_second = 0;
  std::int64_t steps_done = 0;
  double seconds = 0;  // of training alone
  double last_loss = 0;
};

}  // namespace

static double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

static void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

static std::int64_t num_parameters(const torch::nn::Module& module) {
  std::int64_t total = 0;
  for (const at::Tensor& parameter : module.parameters()) total += parameter.numel();
  return total;
}

// Of forward and backward, by the model's matrix products alone, as torchtitan counts: 6 for each weight and
// token, and attention's two products over the sequence. A convolution's weights work once a pixel: it has no
// such figure.
static std::optional<double> flops_per_unit(const Recipe& recipe, const torch::nn::Module& module) {
  const auto parameters = static_cast<double>(num_parameters(module));
  if (std::holds_alternative<models::ResnetConfig>(recipe.model.config)) return std::nullopt;
  const auto* gpt2 = std::get_if<models::Gpt2Config>(&recipe.model.config);
  if (gpt2 == nullptr) return 6 * parameters;
  const auto positions = static_cast<double>(gpt2->n_positions * gpt2->n_embd);
  return 6 * (parameters - positions) +
         12.0 * static_cast<double>(gpt2->n_layer * gpt2->n_embd * recipe.training.seq_len);
}

// The best of a few products of large matrices: what mfu is a share of.
static double measured_peak_flops_per_second(at::ScalarType type) {
  constexpr std::int64_t kSize = 768;
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
    nats += run.learner.trainer.evaluate(held_out.batch(index)) * static_cast<double>(count);
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
  json line = {{"step", run.steps_done}, {"validation_loss", validation.loss}};
  std::string text = concat("validate step: ", run.steps_done, "  loss: ", three_digits(validation.loss));
  if (validation.bits_per_byte) {
    line["validation_bits_per_byte"] = *validation.bits_per_byte;
    text += "  bits per byte: " + three_digits(*validation.bits_per_byte);
  }
  run.metrics.write(line.dump());
  say(text);
}

// Trains to the last step, or to the step in which Ctrl-C came.
static void train_steps(Run& run) {
  const Recipe& recipe = run.recipe;
  const auto units = static_cast<double>(run.task.units_per_step);
  double since_line = 0;
  std::int64_t steps_since_line = 0;
  while (run.steps_done < recipe.training.steps && interrupted == 0) {
    const auto begin = Clock::now();
    const StepResult result = run.learner.trainer.step(run.task.batch(run.steps_done));
    const double seconds = seconds_since(begin);
    run.steps_done = result.step;
    run.last_loss = result.loss;
    run.seconds += seconds;
    since_line += seconds;
    ++steps_since_line;
    run.metrics.write(json{{"step", result.step},
                           {"loss", result.loss},
                           {"grad_norm", result.grad_norm},
                           {"lr", result.learning_rate},
                           {"tps", units / seconds},
                           {"memory_bytes", observe::peak_memory_bytes()}}
                          .dump());
    if (result.step == 1 || result.step % recipe.metrics.log_freq == 0) {
      observe::StepSummary summary = {.step = result.step,
                                      .loss = result.loss,
                                      .grad_norm = result.grad_norm,
                                      .memory_bytes = observe::peak_memory_bytes()};
      summary.tokens_per_second = units * static_cast<double>(steps_since_line) / since_line;
      summary.seconds_left = static_cast<double>(recipe.training.steps - result.step) * since_line /
                             static_cast<double>(steps_since_line);
      if (run.flops_per_unit) {
        summary.flops_per_second = *run.flops_per_unit * summary.tokens_per_second;
        summary.peak_flops_per_second = run.peak_flops_per_second;
      }
      say(observe::to_line(summary));
      since_line = 0;
      steps_since_line = 0;
    }
    const bool is_last = run.steps_done == recipe.training.steps;
    if (recipe.validation.freq > 0 && result.step % recipe.validation.freq == 0 && !is_last &&
        interrupted == 0)
      report(run, validate(run, recipe.validation.steps));
  }
}

static void write_results(Run& run, const observe::Trace& trace, double seconds_in_all) {
  const Validation all = validate(run, run.task.held_out.num_batches);
  report(run, all);
  json results = {{"model", run.recipe.model.name},
                  {"parameters", num_parameters(*run.learner.model.ptr())},
                  {"data", run.task.description},
                  {"steps", run.steps_done},
                  {"interrupted", interrupted != 0},
                  {"seed", run.recipe.training.seed},
                  {"threads", at::get_num_threads()},
                  {"training_loss", run.last_loss},
                  {"validation_loss", all.loss},
                  {"training_seconds", run.seconds},
                  {"memory_bytes", observe::peak_memory_bytes()}};
  if (run.seconds > 0)
    results[run.task.unit + "_per_second"] =
        static_cast<double>(run.steps_done * run.task.units_per_step) / run.seconds;
  if (all.bits_per_byte && run.task.trigram_bits_per_byte) {
    results["bits_per_byte"] = *all.bits_per_byte;
    results["trigram_bits_per_byte"] = *run.task.trigram_bits_per_byte;
    say(concat("held-out bits per byte: ", three_digits(*all.bits_per_byte),
               "  (byte trigram model: ", three_digits(*run.task.trigram_bits_per_byte), ")"));
  }
  if (run.task.sample) {
    const std::string sample = run.task.sample(run.learner.model);
    observe::write_file(run.folder / "sample.txt", sample);
    say(concat("\nsample:\n", shown(sample), "\n"));
    say(concat("sample:  ", (run.folder / "sample.txt").string()));
  }
  if (run.recipe.profiling.enable_profiling) {
    observe::write_file(run.folder / "trace.json", observe::chrome_trace(trace));
    say(concat("trace:   ", (run.folder / "trace.json").string()));
  }
  results["seconds"] = seconds_in_all;
  observe::write_file(run.folder / "results.json",
                      results.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
  say(concat("metrics: ", run.metrics.path().string()));
  say(concat("results: ", (run.folder / "results.json").string()));
}

int train(const Recipe& recipe) {
  const auto begin = Clock::now();
  const InterruptGuard guard;
  const std::filesystem::path folder = recipe.job.dump_folder;
  observe::make_folder(folder);
  observe::Trace trace;
  Run run = {.recipe = recipe,
             .task = make_task(recipe),
             .learner = make_learner(recipe, recipe.profiling.enable_profiling ? &trace : nullptr),
             .metrics = observe::LineFile(folder / "metrics.jsonl"),
             .folder = folder};
  const torch::nn::Module& module = *run.learner.model.ptr();
  run.flops_per_unit = flops_per_unit(recipe, module);
  const auto type = recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat;
  if (run.flops_per_unit) run.peak_flops_per_second = measured_peak_flops_per_second(type);

  say(concat("model:   ", recipe.model.name, ", ", observe::with_commas(num_parameters(module)),
             " parameters"));
  say(concat("data:    ", run.task.description));
  say(concat("steps:   ", observe::with_commas(recipe.training.steps), " of ",
             observe::with_commas(run.task.units_per_step), " ", run.task.unit, " (tps counts ",
             run.task.unit, ")"));
  std::string device = concat("device:  cpu, ", at::get_num_threads(), " threads");
  if (run.flops_per_unit)
    device += concat(", peak ", three_digits(run.peak_flops_per_second / 1e12),
                     " tflops measured by matrix products (mfu is a share of it)");
  say(device);

  train_steps(run);
  if (interrupted != 0)
    say(concat("interrupted after step ", run.steps_done, " of ", recipe.training.steps,
               ": writing what there is (Ctrl-C again to stop at once)"));
  write_results(run, trace, seconds_since(begin));
  return interrupted != 0 ? kInterruptedCode : 0;
}

}  // namespace shoal::cli
