// SPDX-License-Identifier: Apache-2.0
// The bytes of save.h's files.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/crc32c.h"
#include "shoal/ps/save.h"

namespace shoal::ps {

static_assert(std::endian::native == std::endian::little, "rows are written as they lie in memory");

constexpr std::size_t kChunkBytes = 1 << 20;        // a chunk of rows ends at the first that reaches this
constexpr std::uint32_t kMostChunkBytes = 1 << 28;  // what is read of one before its CRC is known

struct Header {
  SaveKind kind = SaveKind::Full;
  std::uint32_t number = 0;
  std::uint64_t origin = 0;
  std::uint32_t part = 0, parts = 1;
  std::uint32_t day = 0;
  std::uint32_t shrinks = 0;  // of a delta: since the save before, each of which decayed all rows
  std::string definition;
  friend bool operator==(const Header&, const Header&) = default;
};

enum class ChunkKind : std::uint32_t { Rows = 1, Removed = 2, End = 3 };

struct ChunkHead {
  ChunkKind what = ChunkKind::End;
  std::uint32_t parts = 0;  // of its rows
  std::uint32_t count = 0, bytes = 0;
};

std::vector<std::byte> to_bytes(const Header& header);
inline std::span<const std::byte> bytes_of(const ChunkHead& head) {
  return std::as_bytes(std::span(&head, 1));
}

// A file of a save, read from its begin to its end. Everything throws Corrupt, naming the file, where a byte
// is not what was written.
class SavedFile {
 public:
  SavedFile(FileSystem& files, const std::filesystem::path& path);
  const Header& header() const { return header_; }
  const std::string& path() const { return path_; }
  std::int64_t bytes() const { return file_->bytes(); }
  // Each chunk, in order, but the last, whose numbers are held against theirs.
  void for_each_chunk(const std::function<void(const ChunkHead&, std::span<const std::byte>)>& visit) const;

 private:
  std::string path_;
  std::unique_ptr<InputFile> file_;
  Header header_;
  std::int64_t first_chunk_ = 0;
};

}  // namespace shoal::ps
