// SPDX-License-Identifier: Apache-2.0
// For tests of what is written and read: no disk is needed, and a damaged file is a string with another byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"

namespace shoal {

// Files that are strings, by their path.
class MemoryFiles final : public FileSystem {
 public:
  std::unique_ptr<OutputFile> create(const std::filesystem::path& path) override {
    contents[path].clear();
    return std::make_unique<Out>(contents[path], room);
  }
  std::unique_ptr<InputFile> open(const std::filesystem::path& path) override {
    return std::make_unique<In>(contents.at(path));
  }
  void make_folder(const std::filesystem::path&) override {}
  bool exists(const std::filesystem::path& path) override { return contents.contains(path); }
  std::vector<std::string> list(const std::filesystem::path&) override { return {}; }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    std::swap(contents[from], contents[to]);
  }
  void remove(const std::filesystem::path& path) override { contents.erase(path); }
  void sync_folder(const std::filesystem::path&) override {}

  std::map<std::filesystem::path, std::string> contents;
  std::size_t room = ~std::size_t{0};  // bytes of a file

 private:
  struct Out final : OutputFile {
    Out(std::string& to, std::size_t room) : text(to), most(room) {}
    void write(std::span<const std::byte> bytes) override {
      SHOAL_CHECK(text.size() + bytes.size() <= most, Infeasible, "the disk is full");
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    void sync() override {}
    std::string& text;
    std::size_t most;
  };
  struct In final : InputFile {
    explicit In(const std::string& from) : text(from) {}
    std::int64_t bytes() const override { return static_cast<std::int64_t>(text.size()); }
    void read(std::int64_t begin, std::span<std::byte> to) const override {
      const auto at = static_cast<std::size_t>(begin);
      SHOAL_CHECK(at + to.size() <= text.size(), Corrupt, "the file ends before");
      std::copy_n(reinterpret_cast<const std::byte*>(text.data()) + at, to.size(), to.begin());
    }
    const std::string& text;
  };
};

}  // namespace shoal
