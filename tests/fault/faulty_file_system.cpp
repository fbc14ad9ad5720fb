// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/faulty_file_system.h"

#include <algorithm>
#include <cstring>

#include "shoal/base/error.h"

namespace shoal::fault {

namespace fs = std::filesystem;

struct FaultyFileSystem::Node {
  bool is_folder = false;
  std::vector<std::byte> bytes, durable_bytes;
  std::map<std::string, std::shared_ptr<Node>> entries, durable_entries;
  std::vector<Change> changes;  // of entries, not yet durable
};

using Node = FaultyFileSystem::Node;

FaultyFileSystem::FaultyFileSystem(std::uint64_t seed) : random_(seed), root_(std::make_shared<Node>()) {
  root_->is_folder = true;
}

std::uint64_t FaultyFileSystem::random(std::uint64_t below) { return below == 0 ? 0 : random_() % below; }

std::shared_ptr<Node> FaultyFileSystem::find(const fs::path& path) const {
  std::shared_ptr<Node> node = root_;
  for (const fs::path& part : path.relative_path()) {
    const auto entry = node->entries.find(part.string());
    if (entry == node->entries.end()) return nullptr;
    node = entry->second;
  }
  return node;
}

std::shared_ptr<Node> FaultyFileSystem::folder_of(const fs::path& path) const {
  auto folder = find(path.parent_path());
  SHOAL_CHECK(folder && folder->is_folder, Infeasible, "cannot write ", path.string(),
              ": No such file or directory");
  return folder;
}

bool FaultyFileSystem::begins_operation() {
  if (operations_ >= crash_at_) throw Crash();
  return ++operations_ < crash_at_;
}

void FaultyFileSystem::operate() {
  if (!begins_operation()) throw Crash();
}

void FaultyFileSystem::change(Node& folder, Change change) {
  for (const auto& [name, node] : change) {
    if (node)
      folder.entries[name] = node;
    else
      folder.entries.erase(name);
  }
  folder.changes.push_back(std::move(change));
}

class FaultyOutput final : public OutputFile {
 public:
  FaultyOutput(FaultyFileSystem& files, std::shared_ptr<Node> node, fs::path path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {}

  void write(std::span<const std::byte> bytes) override {
    const std::lock_guard lock(files_.mutex_);
    const bool completes = files_.begins_operation();
    const auto fits = static_cast<std::size_t>(
        std::min<std::int64_t>(files_.room_, static_cast<std::int64_t>(bytes.size())));
    const std::size_t count = completes ? fits : files_.random(fits + 1);
    node_->bytes.insert(node_->bytes.end(), bytes.begin(),
                        bytes.begin() + static_cast<std::ptrdiff_t>(count));
    files_.room_ -= static_cast<std::int64_t>(count);
    if (!completes) throw Crash();
    SHOAL_CHECK(count == bytes.size(), Infeasible, "cannot write ", path_.string(),
                ": No space left on device");
  }
  void sync() override {
    const std::lock_guard lock(files_.mutex_);
    files_.operate();
    node_->durable_bytes = node_->bytes;
  }

 private:
  FaultyFileSystem& files_;
  std::shared_ptr<Node> node_;
  fs::path path_;
};

namespace {

class MemoryInput final : public InputFile {
 public:
  MemoryInput(std::vector<std::byte> bytes, fs::path path)
      : bytes_(std::move(bytes)), path_(std::move(path)) {}
  std::int64_t bytes() const override { return static_cast<std::int64_t>(bytes_.size()); }
  void read(std::int64_t begin, std::span<std::byte> to) const override {
    SHOAL_CHECK(begin + static_cast<std::int64_t>(to.size()) <= bytes(), Corrupt, path_.string(),
                ": ends before");
    std::copy_n(bytes_.begin() + begin, to.size(), to.begin());
  }

 private:
  std::vector<std::byte> bytes_;
  fs::path path_;
};

}  // namespace

std::unique_ptr<OutputFile> FaultyFileSystem::create(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  operate();
  auto node = std::make_shared<Node>();
  change(*folder_of(path), {{path.filename().string(), node}});
  return std::make_unique<FaultyOutput>(*this, std::move(node), path);
}

std::unique_ptr<InputFile> FaultyFileSystem::open(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  const auto node = find(path);
  SHOAL_CHECK(node && !node->is_folder, InvalidInput, "cannot read ", path.string(),
              ": No such file or directory");
  return std::make_unique<MemoryInput>(node->bytes, path);
}

void FaultyFileSystem::make_folder(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  if (const auto node = find(path); node && node->is_folder) return;
  if (path.has_relative_path()) make_folder(path.parent_path());
  operate();
  auto node = std::make_shared<Node>();
  node->is_folder = true;
  change(*folder_of(path), {{path.filename().string(), std::move(node)}});
}

bool FaultyFileSystem::exists(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  return find(path) != nullptr;
}

std::vector<std::string> FaultyFileSystem::list(const fs::path& folder) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  if (const auto node = find(folder))
    for (const auto& [name, entry] : node->entries) names.push_back(name);
  return names;
}

void FaultyFileSystem::rename(const fs::path& from, const fs::path& to) {
  const std::lock_guard lock(mutex_);
  operate();
  SHOAL_CHECK(from.parent_path() == to.parent_path(), Internal, "this disk renames within a folder only");
  const auto moved = find(from), there = find(to);
  SHOAL_CHECK(moved, Infeasible, "cannot rename to ", to.string(), ": No such file or directory");
  change(*folder_of(to), {{from.filename().string(), there}, {to.filename().string(), moved}});
}

void FaultyFileSystem::remove_node(Node& folder, const std::string& name) {
  const auto node = folder.entries.at(name);
  while (!node->entries.empty()) remove_node(*node, node->entries.begin()->first);
  operate();
  room_ += static_cast<std::int64_t>(node->bytes.size());
  change(folder, {{name, nullptr}});
}

void FaultyFileSystem::remove(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  if (find(path)) remove_node(*folder_of(path), path.filename().string());
}

void FaultyFileSystem::sync_folder(const fs::path& folder) {
  const std::lock_guard lock(mutex_);
  operate();
  const auto node = find(folder);
  node->durable_entries = node->entries;
  node->changes.clear();
}

void FaultyFileSystem::settle(Node& node) {
  if (!node.is_folder) {
    if (node.bytes != node.durable_bytes) {
      const auto choice = random(4);
      const auto keep =
          static_cast<std::size_t>(choice == 0 ? node.durable_bytes.size() : random(node.bytes.size() + 1));
      if (choice == 1)  // the length was recorded, the bytes were not
        std::fill(node.bytes.begin() + static_cast<std::ptrdiff_t>(keep), node.bytes.end(), std::byte{0});
      else if (choice != 2)  // 2: all of it came to the disk by itself
        node.bytes.resize(keep);
    }
    node.durable_bytes = node.bytes;
    return;
  }
  const auto survive = random(node.changes.size() + 1);
  for (std::size_t i = 0; i < survive; ++i)
    for (const auto& [name, entry] : node.changes[i]) {
      if (entry)
        node.durable_entries[name] = entry;
      else
        node.durable_entries.erase(name);
    }
  node.changes.clear();
  node.entries = node.durable_entries;
  for (const auto& [name, entry] : node.entries) settle(*entry);
}

void FaultyFileSystem::restart() {
  const std::lock_guard lock(mutex_);
  crash_at_ = std::numeric_limits<std::int64_t>::max();
  settle(*root_);
}

std::vector<std::byte>& FaultyFileSystem::bytes_of(const fs::path& path) { return find(path)->bytes; }

}  // namespace shoal::fault
