// SPDX-License-Identifier: Apache-2.0
// Rows beside a checkpoint, and those that expire.
#include "shoal/train/model_tables.h"

#include <c10/core/GeneratorImpl.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <tuple>

#include "shoal/aten/memory.h"
#include "shoal/base/file_system.h"
#include "shoal/checkpoint/folder.h"
#include "shoal/train/agreement.h"

namespace shoal::train {

namespace fs = std::filesystem;

static constexpr const char* kRows = "rows";  // their folder in that of checkpoints

// Of the checkpoints in the folder, and of this one, which is none yet.
static void remove_superseded(FileSystem& files, const fs::path& folder, std::int64_t step) {
  const auto kept = checkpoint::steps_among(files.list(folder));
  for (const std::int64_t old : checkpoint::steps_among(files.list(folder / kRows)))
    if (old != step && !std::ranges::binary_search(kept, old))
      files.remove(folder / kRows / checkpoint::name_of_step(old));
}

static fs::path partial_in(const fs::path& folder) { return folder / kRows / ".partial"; }

std::future<std::string> ModelTables::begin_save(const fs::path& folder, std::int64_t step) {
  on_all([&] { worker_->flush(); });
  std::future<std::string> done;
  on_all([&] {
    if (!is_first()) return;
    finish_save();
    DiskFileSystem files;
    const fs::path partial = partial_in(folder);
    files.remove(partial);
    files.make_folder(partial);
    const std::uint64_t origin = c10::detail::getNonDeterministicRandom() | 1U;
    for (const auto& [name, number] : rows_.numbers) worker_->begin_save(number, partial / name, origin);
    save_.emplace(Save{.folder = folder, .step = step});
    done = save_->done.get_future();
  });
  return done;
}

bool ModelTables::is_save_whole() {
  for (const auto& [name, number] : rows_.numbers)
    if (!save_->whole.contains(name) && worker_->saved(number)) save_->whole.insert(name);
  return save_->whole.size() == rows_.numbers.size();
}

void ModelTables::place_save() {
  DiskFileSystem files;
  const auto& [folder, step] = std::tie(save_->folder, save_->step);
  const fs::path partial = partial_in(folder);
  files.sync_folder(partial);
  files.remove(folder / checkpoint::name_of_step(step));  // one of a run before, whose rows go
  files.rename(partial, folder / kRows / checkpoint::name_of_step(step));
  files.remove(partial);
  files.sync_folder(folder / kRows);
  remove_superseded(files, folder, step);
}

void ModelTables::go_on_saving() {
  constexpr std::chrono::milliseconds kBetweenLooks{20};
  const auto now = std::chrono::steady_clock::now();
  if (!save_ || now - save_->looked < kBetweenLooks) return;
  look_at_save();
  if (save_) save_->looked = std::chrono::steady_clock::now();
}

void ModelTables::look_at_save() {
  worker_->settle_pushes();  // what is thrown of them is the step's
  std::string why;
  try {
    if (!is_save_whole()) return;
    place_save();
  } catch (const Error& error) {
    why = error.what();
  }
  save_->done.set_value(why);
  save_.reset();
}

void ModelTables::finish_save() {
  constexpr std::chrono::microseconds kBetweenLooks{500};
  for (; save_; look_at_save()) std::this_thread::sleep_for(kBetweenLooks);
}

void ModelTables::load(const fs::path& folder, std::int64_t step) {
  loaded_step_.reset();
  on_all([&] { worker_->flush(); });
  on_all([&] {
    finish_save();
    const fs::path from = folder / kRows / checkpoint::name_of_step(step);
    if (is_first())
      for (const auto& [name, number] : rows_.numbers) worker_->load(number, from / name);
    worker_->forget();
  });
  have_changed();
  loaded_step_ = step;
}

void ModelTables::have_changed() {
  for (const auto& [name, parameter] : parameters_)
    if (aten::has_memory(parameter)) take_memory(name, parameter);
  is_materialized_ = false;
  loaded_step_.reset();
}

std::map<std::string, ps::Shrunk> ModelTables::end_day(std::uint32_t day) {
  std::map<std::string, ps::Shrunk> all;
  on_all([&] { worker_->flush(); });
  on_all([&] {
    for (const auto& [name, number] : rows_.numbers)
      if (is_first() && worker_->definition(number).scored) all.emplace(name, worker_->shrink(number, day));
    worker_->forget();
  });
  have_changed();
  return all;
}

}  // namespace shoal::train
