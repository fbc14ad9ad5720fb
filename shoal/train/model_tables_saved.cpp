// SPDX-License-Identifier: Apache-2.0
// Rows beside a checkpoint, and those that expire.
#include "shoal/train/model_tables.h"

#include <c10/core/GeneratorImpl.h>

#include <algorithm>

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

void ModelTables::save(const fs::path& folder, std::int64_t step) {
  on_all([&] { worker_->flush(); });
  on_all([&] {
    if (!is_first()) return;
    DiskFileSystem files;
    const fs::path rows = folder / kRows, partial = rows / ".partial",
                   whole = rows / checkpoint::name_of_step(step);
    files.remove(partial);
    files.make_folder(partial);
    const std::uint64_t origin = c10::detail::getNonDeterministicRandom() | 1U;
    for (const auto& [name, number] : rows_.numbers) worker_->save(number, partial / name, origin);
    files.sync_folder(partial);
    files.remove(folder / checkpoint::name_of_step(step));  // one of a run before, whose rows go
    files.rename(partial, whole);
    files.remove(partial);
    files.sync_folder(rows);
    remove_superseded(files, folder, step);
  });
}

void ModelTables::load(const fs::path& folder, std::int64_t step) {
  loaded_step_.reset();
  on_all([&] { worker_->flush(); });
  on_all([&] {
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
