// SPDX-License-Identifier: Apache-2.0
// A disk in memory that fails as disks do: it crashes at the n-th operation, loses what was not synced, runs
// full.
//
//   bytes of a file     survive once the file was synced; before that, any part of them or zeros
//   names in a folder   survive once the folder was synced; before that, the first few of the changes made
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "shoal/base/file_system.h"

namespace shoal::fault {

struct Crash : std::runtime_error {
  Crash() : std::runtime_error("the machine crashed") {}
};

class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(std::uint64_t seed = 0);

  std::unique_ptr<OutputFile> create(const std::filesystem::path& path) override;
  std::unique_ptr<InputFile> open(const std::filesystem::path& path) override;
  void make_folder(const std::filesystem::path& path) override;
  bool exists(const std::filesystem::path& path) override;
  std::vector<std::string> list(const std::filesystem::path& folder) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove(const std::filesystem::path& path) override;
  void sync_folder(const std::filesystem::path& folder) override;

  std::int64_t operations() const { return operations_; }  // that change something, so far
  void crash_at(std::int64_t operation) { crash_at_ = operation; }
  void restart();                                      // after a crash: what the disk still has
  void fill_up(std::int64_t bytes) { room_ = bytes; }  // what still fits
  std::vector<std::byte>& bytes_of(const std::filesystem::path& path);  // of a file, to damage them
  std::uint64_t random(std::uint64_t below);

  struct Node;

 private:
  friend class FaultyOutput;
  using Change = std::vector<std::pair<std::string, std::shared_ptr<Node>>>;  // name → node, null: gone

  std::shared_ptr<Node> find(const std::filesystem::path& path) const;
  std::shared_ptr<Node> folder_of(const std::filesystem::path& path) const;
  void change(Node& folder, Change change);
  void remove_node(Node& folder, const std::string& name);
  bool begins_operation();  // false: this one ends in a crash
  void operate();
  void settle(Node& node);

  mutable std::recursive_mutex mutex_;  // guards all below; a saver has a thread of its own
  std::mt19937_64 random_;
  std::shared_ptr<Node> root_;
  std::int64_t operations_ = 0;
  std::int64_t crash_at_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t room_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace shoal::fault
