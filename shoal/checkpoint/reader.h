// SPDX-License-Identifier: Apache-2.0
// Reads what a Saver wrote, and nothing that was damaged since: every chunk is checked before a byte of it is
// used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/file_system.h"
#include "shoal/checkpoint/manifest.h"

namespace shoal::checkpoint {

// One checkpoint. Borrows the file system.
class Checkpoint {
 public:
  // Reads the manifest. Throws Corrupt naming the folder when there is none or it is damaged.
  Checkpoint(FileSystem& files, std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads and checks every byte. Throws Corrupt naming file, chunk and tensor.
  void verify() const;
  // A whole tensor, row-major, put together from its pieces; checks the chunks that it lies in. `to` has its
  // size.
  void read(const Entry& entry, std::span<std::byte> to) const;

 private:
  void check_chunk(const StoredFile& stored, std::int64_t chunk, std::span<const std::byte> bytes) const;
  std::vector<std::byte> checked_bytes(const StoredFile& stored, std::int64_t begin,
                                       std::int64_t bytes) const;
  const StoredFile& stored(const std::string& name) const;

  FileSystem& files_;
  std::filesystem::path folder_;
  Manifest manifest_;
};

struct Newest {
  std::optional<Checkpoint> checkpoint;  // none: there is no whole one
  std::vector<std::string> broken;       // what is wrong with each that is newer, the newest first
};

// The newest checkpoint of a run's folder whose every byte is as it was written.
Newest newest_whole(FileSystem& files, const std::filesystem::path& folder);
// The checkpoint of one step. Throws InvalidInput listing the steps that there are, or Corrupt that offers
// the newest whole one before it.
Checkpoint checkpoint_of_step(FileSystem& files, const std::filesystem::path& folder, std::int64_t step);

}  // namespace shoal::checkpoint
