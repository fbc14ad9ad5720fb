// SPDX-License-Identifier: Apache-2.0
// A training run, and what its parts do with it: train.cpp begins and ends it, train_loop.cpp makes its
// steps and validations, train_results.cpp writes what came of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shoal/cli/memory_log.h"
#include "shoal/cli/prediction.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/task.h"
#include "shoal/data/click_metrics.h"
#include "shoal/observe/file.h"
#include "shoal/observe/loss_curve.h"
#include "shoal/observe/tensorboard.h"
#include "shoal/observe/trace.h"

namespace shoal::cli {

using Clock = std::chrono::steady_clock;
using Microbatches = std::vector<Batch>;

struct Validation {
  double loss = 0;
  std::optional<double> bits_per_byte;
  std::optional<data::ClickReport> clicks;  // of yes-or-no targets
};

struct TrainRun {
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
  observe::Trace* trace = nullptr;   // of the steps, where anybody wants it
  Prediction* prediction = nullptr;  // likewise
  std::int64_t predicted_bytes = 0;
};

std::int64_t units_per_step(const TrainRun& run);
// What this rank reads of the step that begins at a position of the data.
Microbatches microbatches_at(const TrainRun& run, std::int64_t position);
Validation validate(TrainRun& run, std::int64_t most_batches);
void report(TrainRun& run, const Validation& validation);
// Trains to the last step, or to the step in which a signal came.
void train_steps(TrainRun& run);

// Validates all, and writes what a run leaves: results.json, sample.txt, trace.json, loss.svg.
void write_results(TrainRun& run, const observe::Trace& trace, double seconds_in_all);
// Of metrics.jsonl, the lines of the steps up to this one: a run that was killed wrote lines of steps that
// are now made again. The run, where there is one, gets their losses.
std::string lines_up_to(std::int64_t step, const std::filesystem::path& path, TrainRun* run);

double seconds_since(Clock::time_point begin);
std::string three_digits(double number);
std::string four_digits(double number);

}  // namespace shoal::cli
