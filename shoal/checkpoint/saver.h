// SPDX-License-Identifier: Apache-2.0
// Saves checkpoints while training goes on. save() takes the time of one copy; a thread of the saver's own
// writes the copy aside, syncs it, renames it into place and removes what it supersedes:
//
//   caller    | copy |  train  train  train  train  …
//   thread           | write, checksum | sync | manifest | sync | rename | sync | remove old |
//
// Until the rename is on the disk the checkpoint before is the newest; afterwards this one is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/file_system.h"
#include "shoal/checkpoint/image.h"

namespace shoal::checkpoint {

// Writes one checkpoint, whole or not at all, in the order that a crash at any point survives. `image` is
// filled as `plan` says.
void write_checkpoint(FileSystem& files, const std::filesystem::path& folder, std::int64_t step,
                      const std::string& state, const ImagePlan& plan, std::span<const std::byte> image);
// Removes what `keep` says and what killed writers left. Nobody else may be writing there.
void tidy(FileSystem& files, const std::filesystem::path& folder, std::int64_t keep);

struct SaverOptions {
  std::int64_t keep_latest_k = 10;  // 0: all
  int copy_threads = 2;
};

// One thread at a time. `files` is borrowed and used by the saver's thread too.
class Saver {
 public:
  Saver(FileSystem& files, std::filesystem::path folder, SaverOptions options = {});
  ~Saver();  // ends what is being written, and gives up what is not ready
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Takes memory for tensors of this size, so that the first save is as short as the others.
  void reserve(std::span<const TensorBytes> tensors);
  // Waits for the save before, copies, and returns. `state` is a JSON object. `ready`: of what is to be there before
  // this is a checkpoint; says why not, or nothing.
  void save(std::int64_t step, std::string state, std::span<const TensorBytes> tensors,
            std::future<std::string> ready = {});
  bool is_writing() const;
  void wait();  // until all is on the disk, or has failed

  // What could not be saved, a sentence each, since this was last asked. The checkpoints before are as they
  // were.
  std::vector<std::string> take_failures();
  std::int64_t last_step()
      const;  // of the newest checkpoint that this saver has brought to the disk; -1: none

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::checkpoint
