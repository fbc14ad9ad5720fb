// SPDX-License-Identifier: Apache-2.0
// The steps of a run and the validations between them, with what is printed and counted of each.
#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/interrupt.h"
#include "shoal/cli/train_run.h"
#include "shoal/data/prefetch.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

using nlohmann::json;

std::int64_t units_per_step(const TrainRun& run) { return run.task.units_per_sample * run.sizes.samples(); }

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string four_digits(double number) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.4f", number);
  return text;
}

std::string three_digits(double number) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.3f", number);
  return text;
}

static void add(const at::Tensor& logits, const at::Tensor& targets, data::ClickMetrics& clicks) {
  const at::Tensor scores = logits.to(at::kCPU, at::kFloat).contiguous(),
                   labels = targets.to(at::kCPU, at::kFloat).contiguous();
  const auto span_of = [](const at::Tensor& tensor) {
    return std::span(tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel()));
  };
  clicks.add(span_of(scores), span_of(labels));
}

Validation validate(TrainRun& run, std::int64_t most_batches) {
  const HeldOut& held_out = run.task.held_out;
  const std::int64_t num_batches = std::min(most_batches, held_out.num_batches);
  double nats = 0;
  std::int64_t targets = 0;
  data::ClickMetrics clicks;
  for (std::int64_t i = 0; i < num_batches; ++i) {
    // Spread over the whole text, so that a few batches speak for all.
    const std::int64_t index = i * held_out.num_batches / num_batches;
    const std::int64_t count = held_out.num_targets(index);
    Batch batch = held_out.batch(index);
    const at::Tensor labels = batch["targets"].tensor();
    batch = part_of(batch, run.ranks.part_of(run.sizes.microbatch));  // what others evaluate goes
    nats += run.learner.trainer.evaluate(batch) * static_cast<double>(count);
    targets += count;
    const auto logits = run.learner.trainer.outputs().find("logits");  // of all ranks
    if (logits != run.learner.trainer.outputs().end()) add(logits->second, labels, clicks);
  }
  Validation result = {.loss = nats / static_cast<double>(targets)};
  if (const data::ClickReport report = clicks.report(); report.samples > 0) result.clicks = report;
  if (held_out.num_bytes > 0) {
    std::int64_t all_targets = 0;
    for (std::int64_t i = 0; i < held_out.num_batches; ++i) all_targets += held_out.num_targets(i);
    const double bytes_per_target =
        static_cast<double>(held_out.num_bytes) / static_cast<double>(all_targets);
    result.bits_per_byte = result.loss / std::log(2.0) / bytes_per_target;
  }
  return result;
}

void report(TrainRun& run, const Validation& validation) {
  if (run.metrics == nullptr) return;
  json line = {{"step", run.progress.step}, {"validation_loss", validation.loss}};
  std::string text = concat("validate step: ", run.progress.step, "  loss: ", three_digits(validation.loss));
  if (validation.bits_per_byte) {
    line["validation_bits_per_byte"] = *validation.bits_per_byte;
    text += "  bits per byte: " + three_digits(*validation.bits_per_byte);
  }
  if (validation.clicks) {
    line["validation_auc"] = validation.clicks->auc;
    line["validation_calibration"] = validation.clicks->calibration;
    text += concat("  AUC: ", four_digits(validation.clicks->auc),
                   "  calibration: ", three_digits(validation.clicks->calibration));
  }
  run.metrics->write(line.dump());
  run.validation_losses.push_back({run.progress.step, validation.loss});
  if (run.events != nullptr)
    run.events->write(run.progress.step, {{"validation_metrics/loss", validation.loss}});
  say(text);
  if (validation.clicks)
    for (const std::string& reason : data::likely_reasons(*validation.clicks)) warn(reason);
}

// The gradients of the last step are not kept beside what an evaluation makes.
static void validate_now(TrainRun& run) {
  run.memory->end("steps");
  run.learner.trainer.release();
  report(run, validate(run, run.recipe.validation.steps));
  run.memory->end("validation");
}

Microbatches microbatches_at(const TrainRun& run, std::int64_t position) {
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
  BatchSource(const TrainRun& run, std::int64_t position)
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

static void write_metrics(TrainRun& run, const StepResult& result, double seconds) {
  const double tps = static_cast<double>(units_per_step(run)) / seconds;
  json line = {{"step", result.step},
               {"loss", result.loss},
               {"grad_norm", result.grad_norm},
               {"lr", result.learning_rate},
               {"tps", tps},
               {"seconds", seconds},
               {"memory_bytes", run.memory->of_process()}};
  if (result.loss_scale != 0) line["loss_scale"] = result.loss_scale;
  if (result.skipped) line["skipped"] = true;
  run.metrics->write(line.dump());
  if (run.events != nullptr && !result.skipped)
    run.events->write(result.step, {{"loss_metrics/loss", result.loss},
                                    {"grad_norm", result.grad_norm},
                                    {"lr", result.learning_rate},
                                    {"throughput(tps)", tps}});
}

static void end_day(TrainRun& run, std::int64_t day) {
  for (const auto& [table, went] : run.learner.trainer.end_day(static_cast<std::uint32_t>(day)))
    say(concat("day ", day, "  ", table, ": ", to_text(went)));
}

// Whether a signal has come, to any rank.
static bool is_interrupted(const TrainRun& run) {
  const auto signal = static_cast<int>(run.ranks.largest(interrupted()));
  if (signal != 0) interrupt(signal);
  return signal != 0;
}

void train_steps(TrainRun& run) {
  const Recipe& recipe = run.recipe;
  const auto units = static_cast<double>(units_per_step(run));
  BatchSource batches(run, run.progress.position);
  double since_line = 0;
  std::int64_t steps_since_line = 0;
  std::optional<Microbatches> ahead;
  while (run.progress.step < recipe.training.steps && !is_interrupted(run)) {
    const auto begin = Clock::now();
    const Microbatches microbatches = ahead ? *std::exchange(ahead, std::nullopt) : batches.next();
    if (recipe.ps.prefetch && run.progress.step + 1 < recipe.training.steps)
      run.learner.trainer.expect(ahead.emplace(batches.next()).front());
    const StepResult result = microbatches.size() == 1 ? run.learner.trainer.step(microbatches[0])
                                                       : run.learner.trainer.step_over(microbatches);
    const double seconds = seconds_since(begin);
    run.seconds += seconds;
    if (result.skipped) {
      run.progress.position += run.sizes.samples();
      if (run.metrics != nullptr) write_metrics(run, result, seconds);
      say(concat("step: ", result.step + 1,
                 " skipped: a gradient overflowed in float16, whose loss was scaled by ", result.loss_scale));
      continue;
    }
    if (run.prediction != nullptr) run.prediction->look(*run.trace);
    const bool is_compared = result.step - run.first_step >= kComparedSteps;
    if (run.trace != nullptr && !recipe.profiling.enable_profiling && is_compared)
      run.trace->capacity = 0;  // it takes no more
    run.progress = {
        .step = result.step, .position = run.progress.position + run.sizes.samples(), .loss = result.loss};
    run.losses.push_back({result.step, result.loss});
    since_line += seconds;
    ++steps_since_line;
    const bool has_line = run.metrics != nullptr &&
                          (result.step == run.first_step + 1 || result.step % recipe.metrics.log_freq == 0);
    if (has_line) run.memory->look();
    if (run.metrics != nullptr) write_metrics(run, result, seconds);
    if (has_line) {
      observe::StepSummary summary = {.step = result.step,
                                      .loss = result.loss,
                                      .grad_norm = result.grad_norm,
                                      .memory_bytes = run.memory->of_process()};
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
      since_line = 0;
      steps_since_line = 0;
    }
    if (recipe.ps.day_steps > 0 && result.step % recipe.ps.day_steps == 0)
      end_day(run, result.step / recipe.ps.day_steps);
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

}  // namespace shoal::cli
