// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: where it goes on, when it saves, what it says about that. Beside the trainer's
// state a checkpoint keeps the recipe and how far the data was consumed:
//
//   {"trainer": {"step": 100, "updates": {…}},
//    "data": {"key": "1f…", "num_samples": 29000, "seed": 1, "position": 800},
//    "loss": 4.31, "recipe": {"training.steps": "200", …}}
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/base/file_system.h"
#include "shoal/checkpoint/reader.h"
#include "shoal/checkpoint/saver.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"

namespace shoal::cli {

struct Progress {
  std::int64_t step = 0;      // updates made
  std::int64_t position = 0;  // samples consumed
  double loss = 0;            // of the last step
};

// Prints what it does. Borrows all; the file system outlives it. Of several ranks all call it alike: the
// first one decides, writes and prints, and each reads what it goes on from.
class RunCheckpoints {
 public:
  RunCheckpoints(const Recipe& recipe, const Task& task, Learner& learner, FileSystem& files,
                 const Ranks& ranks);

  // Goes on from the checkpoint that the recipe asks for, or begins with weights from elsewhere, or with what
  // the learner has. A damaged checkpoint is named, and the one before it taken. Throws InvalidInput when the
  // checkpoint is of other data or another model.
  Progress begin();
  // After a step: saves when it is time to. A save that fails, or is not done when the next is due, is a
  // warning.
  void after(const Progress& progress);
  // Saves this moment, unless it is saved already, and waits for the disk. False: that failed, and was said.
  bool save_and_wait(const Progress& progress);

  const std::filesystem::path& folder() const { return folder_; }

 private:
  // The step of the checkpoint to go on from; nothing where there is none.
  std::optional<std::int64_t> step_to_go_on_from();
  Progress go_on_from(const checkpoint::Checkpoint& checkpoint);
  void save(const Progress& progress);
  void wait();  // until what is being saved is on the disk, or has failed
  void report_failures();

  const Recipe& recipe_;
  const Task& task_;
  Learner& learner_;
  FileSystem& files_;
  const Ranks& ranks_;
  std::filesystem::path folder_;
  checkpoint::Saver saver_;
  std::int64_t saved_step_ = -1;  // of the last one handed to the saver, or gone on from
};

// The recipe in a checkpoint. Throws Corrupt.
Recipe recipe_of(const checkpoint::Checkpoint& checkpoint);

// Copies weights from a safetensors file, a Hugging Face folder or a checkpoint into a module, whatever their
// floating type. Throws InvalidInput listing all that does not fit, config.json's sizes included.
void load_weights(FileSystem& files, const std::filesystem::path& path, const Recipe& recipe,
                  torch::nn::Module& module);

// The learner's model with the weights of recipe.checkpoint.initial_load_path or, where there is none, of the
// run's newest whole checkpoint.
torch::nn::AnyModule trained_model(FileSystem& files, const Recipe& recipe);

void say(const std::string& line);  // on standard output, at once
// "planned in 0.4 s, 114.2MiB of memory".
void say_took(std::string_view done, std::chrono::steady_clock::time_point since);
void warn(const std::string& line);  // on standard error

}  // namespace shoal::cli
