// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a trainer, saved and gone on from by one call each: Trainer::save and load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "shoal/base/file_system.h"
#include "shoal/checkpoint/saver.h"
#include "shoal/runtime/groups.h"
#include "shoal/train/training_state.h"

namespace shoal::train {

// All ranks call each at once; the first one writes, and what it cannot write all of them throw.
class Checkpoints {
 public:
  // `control`: of all ranks, borrowed; null: one device. SHOAL_FILES in the environment says who may read what is
  // saved (set_readers()).
  explicit Checkpoints(const runtime::Group* control);

  // Waits for the save before into that folder, and throws Infeasible where it has failed; then takes the
  // time of one copy. The newest `keep` stay, 0: all. `ready`: as Saver::save() has it.
  void save(const std::filesystem::path& folder, const TrainingState& state, const std::string& note,
            std::int64_t keep, std::future<std::string> ready = {});
  // Until all is on the disk; throws Infeasible with what is not.
  void wait();

  struct Found {
    TrainingState state;
    std::string note;
  };
  // The newest whole one; nothing where there is none. Throws Corrupt where all are damaged. With `wanted`, that
  // step's: throws as checkpoint::checkpoint_of_step().
  std::optional<Found> load(const std::filesystem::path& folder, std::optional<std::int64_t> wanted);

 private:
  void on_all(const std::function<void()>& act) const;
  bool is_first() const { return control_ == nullptr || control_->rank() == 0; }

  const runtime::Group* control_;
  DiskFileSystem files_;
  struct Kept {
    std::unique_ptr<checkpoint::Saver> saver;
    std::int64_t keep = 0;
  };
  std::map<std::filesystem::path, Kept> savers_;  // by folder; of the first rank
};

}  // namespace shoal::train
