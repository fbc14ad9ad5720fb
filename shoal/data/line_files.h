// SPDX-License-Identifier: Apache-2.0
// Lines of text files, in parts that can be read in any order: stretches of about `part_bytes`, each with the
// lines that begin in it; a gzip file is one part, read on and on in blocks of as many bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/file_system.h"
#include "shoal/data/gunzip.h"

namespace shoal::data {

struct FilePart {
  std::size_t file = 0;
  std::int64_t begin = 0, end = 0;  // bytes of the file
  bool is_gzip = false;
};

struct LineFiles {
  // Files are told to be gzip by their first bytes. Throws InvalidInput when there is none, or one is not
  // there. `files` is borrowed.
  LineFiles(FileSystem& files, std::vector<std::filesystem::path> paths, std::int64_t part_bytes);

  FileSystem* files;
  std::vector<std::filesystem::path> paths;
  std::int64_t part_bytes;
  std::vector<FilePart> parts;
  std::uint64_t key = 0;  // of the files' names and lengths, and of how they are cut
};

// Reads one part after the other, block by block.
class PartReader {
 public:
  static constexpr std::size_t kLongestLine = 1 << 20;

  explicit PartReader(const LineFiles& files) : files_(files) {}  // borrowed

  void open(std::size_t part);  // from its first block on
  // The next block's lines, without their ends; false when there is none. Lines stay until the next call.
  // Throws InvalidInput for a line longer than kLongestLine.
  bool next(std::vector<std::string_view>& lines);
  // "path:number" of a line of this block, from 1. May have to count those before it.
  std::string place_of(std::size_t line) const;

 private:
  bool next_of_plain();
  bool next_of_gzip();
  void must_end(bool does) const;

  const LineFiles& files_;
  FilePart part_;
  std::unique_ptr<InputFile> file_;
  std::unique_ptr<Gunzip> gunzip_;
  std::vector<char> text_;
  std::size_t begin_ = 0, end_ = 0;  // the block in text_; behind it, of gzip, what was read of the next one
  std::size_t filled_ = 0;
  std::int64_t lines_before_ = 0;  // of gzip: in the blocks before
  std::size_t num_lines_ = 0;
  std::int64_t first_byte_ = 0;  // of plain text: of the block, in the file
  bool is_over_ = true;
};

}  // namespace shoal::data
