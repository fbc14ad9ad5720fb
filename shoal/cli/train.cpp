// SPDX-License-Identifier: Apache-2.0
// shoal train: reads the text, trains, validates, and leaves its results in job.dump_folder:
//
//   metrics.jsonl   a line a step and a line a validation, there as soon as it is printed
//   results.json    what was reached, beside the trigram model; sample.txt; trace.json with profiling
//   simulated.json  what the simulator said of a step beside what 20 took, with profiling.cluster
//   loss.svg        how the loss fell; tb/ the same for TensorBoard, if it is asked for
//   checkpoint/     what a later run goes on from
//   tokens.bin      the tokenised text, for the next run
//
// Ctrl-C ends the loop after the step that is running; the results so far are then written like any others.
// SIGTERM, which a scheduler sends some seconds before the end, ends the step, saves, says how to go on, and
// no more. Of several ranks each trains on its share of every batch; the first one writes and prints.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/device.h"
#include "shoal/cli/flops.h"
#include "shoal/cli/forecast.h"
#include "shoal/cli/interrupt.h"
#include "shoal/cli/memory_choice.h"
#include "shoal/cli/memory_log.h"
#include "shoal/cli/ps_servers.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/task.h"
#include "shoal/cli/train_run.h"
#include "shoal/cli/verbs.h"
#include "shoal/observe/file.h"
#include "shoal/observe/summary.h"
#include "shoal/observe/tensorboard.h"
#include "shoal/runtime/allocator.h"
#include "shoal/train/half_products.h"

namespace shoal::cli {

static std::string where_tables_are(const Recipe& recipe) {
  if (recipe.ps.servers == 0) return " in this process";
  return concat(" on ", recipe.ps.servers, recipe.ps.servers == 1 ? " server" : " servers",
                recipe.ps.servers > 1 && recipe.ps.copies > 1 ? ", each row on two" : "");
}

static void describe(const TrainRun& run) {
  // Looks at a micro-batch, as the ranks do: together.
  std::optional<std::string> weighing;
  if (run.sizes.num_microbatches > 1)
    weighing = run.learner.trainer.weighing(microbatches_at(run, run.progress.position)[0]);
  if (run.metrics == nullptr) return;
  const torch::nn::Module& module = *run.learner.model.ptr();
  say(concat("model:   ", run.recipe.model.name, ", ",
             observe::with_commas(num_parameters(run.recipe, module)), " parameters",
             run.recipe.tables.empty() ? ""
                                       : concat(", ", run.recipe.tables.size(),
                                                run.recipe.tables.size() == 1 ? " table" : " tables",
                                                where_tables_are(run.recipe))));
  say(concat("data:    ", run.task.description));
  say(concat("steps:   ", observe::with_commas(run.recipe.training.steps), " of ",
             observe::with_commas(units_per_step(run)), " ", run.task.unit, " (tps counts ", run.task.unit,
             ")"));
  if (weighing)
    say(concat("batch:   ", run.sizes.samples(), " in micro-batches of ", run.sizes.microbatch, "; ",
               *weighing));
  if (run.ranks.size() > 1)
    say(concat("ranks:   ", run.ranks.size(), ", ", to_text(run.ranks.mesh()), "; ", run.sizes.microbatch,
               " samples are shared among ", data_ranks_of(run.ranks.parallelism()), "; ",
               run.ranks.medium()));
  std::string device =
      concat("device:  cpu, ", at::get_num_threads(), " threads", run.ranks.size() > 1 ? " each" : "");
  if (run.flops_per_unit)
    device += concat(", peak ", three_digits(run.peak_flops_per_second / 1e12),
                     " tflops measured by matrix products (mfu is a share of it)");
  say(device);
  const auto& precision = run.ranks.parallelism().plan.precision;
  if (precision.compute == DType::Float32) return;
  const std::string_view instructions = train::product_instructions(precision.compute);
  const std::string name = precision.compute == DType::Float16 ? "float16" : "bfloat16";
  say(instructions.empty() ? concat("precision: products of what is rounded to ", name,
                                    ", in float32: this processor has no kernels for it")
                           : concat("precision: products in ", name, " (", instructions, ")"));
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

static bool overlaps(const Ranks& ranks) {
  const comm::Communicator* world = ranks.parallelism().world;
  return world != nullptr && world->is_asynchronous();
}

// The most of any rank. Throws where that is above the limit.
static std::int64_t predicted(const Recipe& recipe, const Ranks& ranks, std::int64_t most_of_data) {
  const DataMemory data = {.kept = runtime::memory_counts().live_bytes, .most = most_of_data};
  const Parallelism parallelism = parallelism_of(recipe, ranks.size(), overlaps(ranks));
  Phase largest =
      data.beside(forecast_of(recipe, parallelism, ranks.rank(), at::get_num_threads()).largest());
  largest.bytes = ranks.largest(largest.bytes);  // all refuse, or none does
  check_limit(recipe, largest);
  return largest.bytes;
}

// What memory.auto chooses for a rank of this job: the first one looks for it, and tells the others. Where there is no
// choice, why: all have the same.
static std::variant<MemoryChoice, Error> chosen_for_memory(WithinLimit& search, const Recipe& given,
                                                           const Ranks& ranks, DataMemory data) {
  MemoryChoice choice = {.recipe = given, .text = ""};
  std::optional<Error> error;
  try {
    if (ranks.is_first()) choice = search.choose(data);
  } catch (const Error& thrown) {
    error = thrown;
  }
  if (const auto kind = ranks.of_first(error ? static_cast<std::int64_t>(error->kind()) : -1); kind >= 0)
    return Error(static_cast<ErrorKind>(kind), ranks.of_first(std::string(error ? error->what() : "")));
  for (std::int64_t* number :
       {&choice.recipe.training.local_batch_size, &choice.recipe.training.global_batch_size, &choice.bytes})
    *number = ranks.of_first(*number);
  set_offload(choice.recipe, ranks.of_first(offload_in(choice.recipe)));
  recompute_within(choice.recipe, ranks.of_first(parse_bytes(choice.recipe.recompute.bytes).value_or(0)));
  return choice;
}

// Its data are made as the choice says, and may be too much for it.
static MemoryChoice choose(const Recipe& given, Ranks& ranks, StepSizes& sizes, std::optional<Task>& task,
                           MemoryLog& memory) {
  WithinLimit search(given, ranks.size(), at::get_num_threads(), overlaps(ranks));
  MemoryChoice choice = {.recipe = given, .text = ""};
  bool is_found = false;
  if (given.memory.automatic) {
    const auto before = chosen_for_memory(search, given, ranks, {});
    is_found = std::holds_alternative<MemoryChoice>(before);
    if (is_found) choice = std::get<MemoryChoice>(before);
    memory.end("choice");
  }
  sizes = sizes_of(choice.recipe, ranks.parallelism());
  task = make_task(choice.recipe, sizes, ranks);
  if (!given.memory.automatic) return choice;
  const DataMemory data = {.kept = ranks.largest(runtime::memory_counts().live_bytes),
                           .most = ranks.largest(memory.end("data"))};
  const std::int64_t limit = parse_bytes(given.memory.limit).value_or(0);
  if (!is_found || data.beside({.name = "", .bytes = choice.bytes}).bytes > limit) {
    const auto after = chosen_for_memory(search, given, ranks, data);
    if (const auto* error = std::get_if<Error>(&after)) throw *error;
    choice = std::get<MemoryChoice>(after);
    if (const StepSizes smaller = sizes_of(choice.recipe, ranks.parallelism()); smaller != sizes) {
      sizes = smaller;
      task.reset();
      task = make_task(choice.recipe, sizes, ranks);
    }
  }
  ranks.follow(choice.recipe);
  if (ranks.is_first()) say(choice.text);
  return choice;
}

int train(const Recipe& given, const Options& options) {
  const elastic::Environment environment = elastic::environment_of(environ);
  const bool is_alone = elastic::place_of(environment).starter == "alone";
  if (options.ranks > 0 || (given.ps.servers > 0 && is_alone && !environment.contains("SHOAL_STORE"))) {
    device_of(given);  // before there are ranks that would say it one by one
    if (!given.profiling.cluster.empty()) cluster_of(given);  // likewise
    if (!given.memory.limit.empty() && !given.memory.automatic)
      check_limit(given, forecast_of(given, parallelism_of(given, std::max(options.ranks, 1)), 0,
                                     threads_of_rank(std::max(options.ranks, 1)))
                             .largest());
    return start_ranks("train", options, given);
  }
  const auto begin = Clock::now();
  const InterruptGuard guard;
  MemoryLog memory;
  Ranks ranks(given, environment);
  const double at_once = share_cores(ranks.ranks_of_this_host()) * ranks.size() / ranks.ranks_of_this_host();
  ranks.check_same(given);
  const std::filesystem::path folder = given.job.dump_folder;
  if (ranks.is_first_of_host()) observe::make_folder(folder);
  std::optional<FolderLock> lock;
  if (ranks.is_first()) lock.emplace(folder);
  DiskFileSystem files;
  observe::Trace trace;
  StepSizes sizes;
  std::optional<Task> made;
  const MemoryChoice choice = choose(given, ranks, sizes, made, memory);
  const Recipe& recipe = choice.recipe;
  const Task& task = *made;
  const std::int64_t predicted_bytes = predicted(recipe, ranks, memory.end("data"));
  std::optional<Prediction> prediction;
  if (!recipe.profiling.cluster.empty() && ranks.is_first()) prediction.emplace(recipe, ranks.size(), folder);
  const auto& profiling = recipe.profiling;
  if (!profiling.timeline.empty() && ranks.is_first())
    observe::write_file(profiling.timeline, "");  // or not at all
  const bool is_traced =
      (profiling.enable_profiling || prediction || !profiling.timeline.empty()) && ranks.is_first();
  observe::Trace* traced = is_traced ? &trace : nullptr;
  const auto tables = ranks.tables(recipe);
  Learner learner = make_learner(recipe, traced, ranks.parallelism(), tables.get());
  memory.end("model");
  RunCheckpoints checkpoints(recipe, task, learner, files, ranks);
  const Progress progress = checkpoints.begin();
  TrainRun run = {.recipe = recipe,
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
                  .trace = traced,
                  .prediction = prediction ? &*prediction : nullptr,
                  .predicted_bytes = predicted_bytes};
  std::optional<observe::LineFile> metrics;
  std::optional<observe::EventFile> events;
  if (ranks.is_first()) {
    const std::filesystem::path path = folder / "metrics.jsonl";
    if (progress.step > 0) observe::write_file(path, lines_up_to(progress.step, path, nullptr));
    run.metrics = &metrics.emplace(
        path, progress.step > 0 ? observe::LineFile::Begin::Continue : observe::LineFile::Begin::Empty);
    if (recipe.metrics.enable_tensorboard)
      run.events = &events.emplace(folder / recipe.metrics.save_tb_folder);
    if (progress.step > 0) lines_up_to(progress.step, path, &run);
    run.flops_per_unit = flops_per_unit(recipe, *learner.model.ptr());
    const at::Device device = device_of(recipe);
    if (run.flops_per_unit)
      run.peak_flops_per_second =
          (device.is_cpu() ? at_once : ranks.size()) * measured_peak_flops_per_second(recipe, device);
  }
  describe(run);

  memory.end("begin");
  train_steps(run);
  const auto signal = static_cast<int>(ranks.largest(interrupted()));  // what all ranks go by from here
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
  return interrupted() == 0 ? 0 : interrupted() == SIGTERM ? kTerminatedCode : kInterruptedCode;
}

}  // namespace shoal::cli
