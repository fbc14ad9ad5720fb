// SPDX-License-Identifier: Apache-2.0
// Files of results: whatever goes wrong while writing is an error that names the file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shoal::observe {

// Replaces the file by one with these bytes, whole or not at all: written beside it, synced, renamed. Throws
// Infeasible.
void write_file(const std::filesystem::path& path, std::string_view bytes);

// Makes the folder, and those above it, and proves by a file that it can be written to. Throws Infeasible.
void make_folder(const std::filesystem::path& folder);

// Lines appended to a file; each is in the file when `write` returns. One thread at a time.
class LineFile {
 public:
  enum class Begin { Empty, Continue };  // what becomes of a file that is there
  explicit LineFile(std::filesystem::path path, Begin begin = Begin::Empty);  // throws Infeasible
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  void write(std::string_view line);    // without the line break; throws Infeasible
  void append(std::string_view bytes);  // as they are; throws Infeasible
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace shoal::observe
