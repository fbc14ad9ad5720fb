// SPDX-License-Identifier: Apache-2.0
// Rows beside a checkpoint, and those that expire.
#include "shoal/train/model_tables.h"

#include <c10/core/GeneratorImpl.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>

#include "shoal/aten/memory.h"
#include "shoal/base/file_system.h"
#include "shoal/checkpoint/folder.h"
#include "shoal/train/agreement.h"

namespace shoal::train {

namespace fs = std::filesystem;

static constexpr const char* kRows = "rows";  // their folder in that of checkpoints

static fs::path rows_of(const fs::path& folder, std::int64_t step) {
  return folder / kRows / checkpoint::name_of_step(step);
}

// The steps whose rows it takes to have those of one, itself among them.
static std::set<std::string> needed_by(FileSystem& files, const fs::path& folder, std::int64_t step) {
  std::set<std::string> names;
  for (const fs::path& path : ps::saves_up_to(files, rows_of(folder, step) / "-"))
    names.insert(path.parent_path().filename().string());
  return names;
}

// Rows that neither the checkpoints in the folder nor this one, which is none yet, can be made of.
static void remove_superseded(FileSystem& files, const fs::path& folder, std::int64_t step) {
  std::set<std::string> needed = needed_by(files, folder, step);
  for (const std::int64_t kept : checkpoint::steps_among(files.list(folder)))
    needed.merge(needed_by(files, folder, kept));
  for (const std::int64_t old : checkpoint::steps_among(files.list(folder / kRows)))
    if (!needed.contains(checkpoint::name_of_step(old))) files.remove(rows_of(folder, old));
}

// Checkpoints of a run before that want the rows of this step, which others take the place of.
static void remove_followers(FileSystem& files, const fs::path& folder, std::int64_t step) {
  if (!files.exists(rows_of(folder, step))) return;
  for (const std::int64_t other : checkpoint::steps_among(files.list(folder)))
    if (needed_by(files, folder, other).contains(checkpoint::name_of_step(step)))
      files.remove(folder / checkpoint::name_of_step(other));
}

static void write_follows(FileSystem& files, const fs::path& folder, const std::string& before) {
  const auto file = files.create(folder / ps::kFollows);
  file->write(std::as_bytes(std::span(before)));
  file->sync();
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
    const ps::Saved as = next_save(folder, step);
    if (as.number > 0) write_follows(files, partial, checkpoint::name_of_step(last_save_->step));
    last_save_.reset();
    save_.emplace(Save{.folder = folder, .step = step, .as = as});
    done = save_->done.get_future();
    try {
      for (const auto& [name, number] : rows_.numbers) worker_->begin_save(number, partial / name, as);
    } catch (const Error&
                 error) {  // a server has gone meanwhile, say, and its copy does not know this one's begin
      if (error.kind() == ErrorKind::PeerLost) throw;
      end_save(error.what());
    }
  });
  return done;
}

// A delta of the last one where that is as far as each table knows what changed.
ps::Saved ModelTables::next_save(const fs::path& folder, std::int64_t step) {
  DiskFileSystem files;
  const bool can_follow =
      last_save_ && last_save_->as.number < save_deltas_ && last_save_->folder == folder &&
      last_save_->step < step && files.exists(rows_of(folder, last_save_->step)) &&
      std::ranges::all_of(
          rows_.numbers,
          [&](const auto& table) { return worker_->last_save(table.second) == last_save_->as; });
  if (can_follow) return {.origin = last_save_->as.origin, .number = last_save_->as.number + 1};
  return {.origin = c10::detail::getNonDeterministicRandom() | 1U, .number = 0};
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
  remove_followers(files, folder, step);
  files.rename(partial, rows_of(folder, step));
  files.remove(partial);
  files.sync_folder(folder / kRows);
  remove_superseded(files, folder, step);
  last_save_ = {.folder = folder, .step = step, .as = save_->as};
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
  end_save(why);
}

void ModelTables::end_save(const std::string& why) {
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
    last_save_.reset();
    const fs::path from = rows_of(folder, step);
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
