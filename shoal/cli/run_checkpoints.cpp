// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/run_checkpoints.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/checkpoint/folder.h"
#include "shoal/observe/summary.h"
#include "shoal/train/training_state.h"

namespace shoal::cli {

using nlohmann::json;
namespace fs = std::filesystem;

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

void say_took(std::string_view done, std::chrono::steady_clock::time_point since) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - since;
  char text[32];
  std::snprintf(text, sizeof text, " in %.1f s, ", seconds.count());
  say(concat(done, text, human_bytes(observe::peak_memory_bytes(observe::memory_now().of_others)),
             " of memory"));
}

void warn(const std::string& line) { std::fprintf(stderr, "shoal: warning: %s\n", line.c_str()); }

static fs::path folder_of(const Recipe& recipe) {
  return fs::path(recipe.job.dump_folder) / recipe.checkpoint.folder;
}

RunCheckpoints::RunCheckpoints(const Recipe& recipe, const Task& task, Learner& learner, FileSystem& files,
                               const Ranks& ranks)
    : recipe_(recipe),
      task_(task),
      learner_(learner),
      files_(files),
      ranks_(ranks),
      folder_(folder_of(recipe)),
      saver_(files, folder_, {.keep_latest_k = recipe.checkpoint.keep_latest_k}) {}

static json data_of(const Recipe& recipe, const Task& task) {
  return {{"key", std::to_string(task.dataset_key)},
          {"num_samples", task.num_samples},
          {"seed", recipe.training.seed}};
}

static json state_of(const checkpoint::Checkpoint& checkpoint) {
  json state = json::parse(checkpoint.manifest().state);
  for (const char* key : {"trainer", "data", "recipe"})
    SHOAL_CHECK(state.contains(key) && state[key].is_object(), Corrupt, checkpoint.folder().string(),
                ": was not made by shoal train: its state has no ", key);
  return state;
}

std::optional<std::int64_t> RunCheckpoints::step_to_go_on_from() {
  const auto steps = checkpoint::steps_among(files_.list(folder_));
  SHOAL_CHECK(recipe_.checkpoint.enable || steps.empty(), InvalidInput, folder_.string(),
              " holds checkpoints of an earlier run, the newest of step ", steps.empty() ? 0 : steps.back(),
              ": go on from it with --checkpoint.enable=true, or begin anew in another --job.dump_folder");
  if (recipe_.checkpoint.load_step >= 0) return recipe_.checkpoint.load_step;
  const auto newest = checkpoint::newest_whole(files_, folder_);
  for (const std::string& fault : newest.broken) warn(fault + "; the checkpoint before it is tried");
  if (newest.checkpoint) return newest.checkpoint->manifest().step;
  SHOAL_CHECK(newest.broken.empty(), Corrupt, folder_.string(),
              ": none of its checkpoints is whole; remove it to begin anew");
  return std::nullopt;
}

Progress RunCheckpoints::begin() {
  constexpr std::int64_t kNone = -1;
  std::int64_t step = kNone;
  if (ranks_.is_first()) step = step_to_go_on_from().value_or(kNone);
  step = ranks_.of_first(step);
  if (step != kNone) return go_on_from(checkpoint::checkpoint_of_step(files_, folder_, step));
  if (!recipe_.checkpoint.initial_load_path.empty()) {
    learner_.trainer.materialize();
    load_weights(files_, recipe_.checkpoint.initial_load_path, recipe_, *learner_.model.ptr());
    if (ranks_.is_first()) say(concat("weights: ", recipe_.checkpoint.initial_load_path));
  }
  return {};
}

Progress RunCheckpoints::go_on_from(const checkpoint::Checkpoint& checkpoint) {
  const json state = state_of(checkpoint);
  json made_on = state["data"];
  Progress progress = {.step = checkpoint.manifest().step,
                       .position = made_on.value("position", std::int64_t{-1})};
  made_on.erase("position");
  SHOAL_CHECK(
      made_on == data_of(recipe_, task_) && progress.position >= 0, InvalidInput,
      checkpoint.folder().string(), ": was made on other data: there ", made_on.dump(), ", here ",
      data_of(recipe_, task_).dump(),
      ". Restore dataset.*, training.seq_len and training.seed, or begin a new run with these weights: "
      "--checkpoint.initial_load_path=",
      checkpoint.folder().string(), " and another --job.dump_folder");
  learner_.trainer.load_rows(folder_, progress.step);
  learner_.trainer.restore(train::read_state(checkpoint, state["trainer"].dump()));
  progress.loss = state.value("loss", 0.0);
  saved_step_ = progress.step;
  if (!ranks_.is_first()) return progress;
  say(concat("resume:  step ", progress.step, " from ", checkpoint.folder().string()));
  if (progress.step >= recipe_.training.steps)
    say(concat("         that is all of training.steps = ", recipe_.training.steps,
               "; a larger one goes on, another --job.dump_folder begins anew"));
  return progress;
}

void RunCheckpoints::save(const Progress& progress) {
  const TrainingState state = learner_.trainer.state();  // gathers what ranks keep in parts
  std::future<std::string> rows;
  try {
    rows = learner_.trainer.begin_saving_rows(folder_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Infeasible) throw;
    if (ranks_.is_first()) warn(concat(error.what(), "; training goes on"));
    return;
  }
  saved_step_ = progress.step;
  if (!ranks_.is_first()) return;
  json data = data_of(recipe_, task_);
  data["position"] = progress.position;
  const json document = {{"trainer", json::parse(train::counts_of(state))},
                         {"data", std::move(data)},
                         {"loss", progress.loss},
                         {"recipe", settings_of(recipe_)}};
  const train::Snapshot snapshot = train::snapshot_of(state);
  saver_.save(progress.step, document.dump(-1, ' ', false, json::error_handler_t::replace), snapshot.tensors,
              std::move(rows));
}

void RunCheckpoints::report_failures() {
  for (const std::string& failure : saver_.take_failures()) {
    warn(failure + "; training goes on");
    saved_step_ = saver_.last_step();
  }
}

void RunCheckpoints::after(const Progress& progress) {
  report_failures();
  if (!recipe_.checkpoint.enable) return;
  const bool is_due = progress.step % recipe_.checkpoint.interval == 0;
  if (!is_due || progress.step == recipe_.training.steps) return;  // the last one is saved when training ends
  if (ranks_.of_first(saver_.is_writing()) != 0) {
    if (!ranks_.is_first()) return;
    warn(concat("the checkpoint of step ", saved_step_, " is still being written; that of step ",
                progress.step, " is left out: a larger checkpoint.interval, or a faster disk"));
    return;
  }
  save(progress);
  if (recipe_.checkpoint.async_mode == AsyncMode::Disabled) wait();
}

void RunCheckpoints::wait() {
  learner_.trainer.finish_saving_rows();
  saver_.wait();
}

bool RunCheckpoints::save_and_wait(const Progress& progress) {
  wait();
  report_failures();
  if (ranks_.of_first(saved_step_ != progress.step) != 0) save(progress);
  wait();
  report_failures();
  return ranks_.of_first(saved_step_ == progress.step) !=
         0;  // until then servers of all hosts write its rows
}

Recipe recipe_of(const checkpoint::Checkpoint& checkpoint) {
  const json state = state_of(checkpoint);
  std::map<std::string, std::string> settings;
  for (const auto& [name, value] : state["recipe"].items())
    if (value.is_string()) settings.emplace(name, value.get<std::string>());
  return recipe_from(settings, checkpoint.folder().string());
}

torch::nn::AnyModule trained_model(FileSystem& files, const Recipe& recipe) {
  torch::nn::AnyModule model = make_learner(recipe, nullptr).model;
  fs::path path = recipe.checkpoint.initial_load_path;
  if (path.empty()) {
    const fs::path folder = folder_of(recipe);
    auto newest = checkpoint::newest_whole(files, folder);
    for (const std::string& fault : newest.broken) warn(fault + "; the checkpoint before it is taken");
    SHOAL_CHECK(newest.checkpoint, InvalidInput, folder.string(),
                ": holds no whole checkpoint; train with --checkpoint.enable=true, or name weights with "
                "--checkpoint.initial_load_path=PATH");
    path = newest.checkpoint->folder();
  }
  load_weights(files, path, recipe, *model.ptr());
  return model;
}

}  // namespace shoal::cli
