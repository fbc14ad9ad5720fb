// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/save_format.h"

#include <cstring>

#include "shoal/base/error.h"

namespace shoal::ps {

static constexpr std::array<char, 8> kMagic = {'s', 'h', 'o', 'a', 'l', 'p', 's', '2'};
static constexpr std::uint32_t kMostText = 1 << 16;

namespace {

// What a file begins with, before the definition's text.
struct Begin {
  std::array<char, 8> magic = kMagic;
  std::uint32_t kind = 0, number = 0;
  std::uint64_t origin = 0;
  std::uint32_t part = 0, parts = 0, day = 0, shrinks = 0;
  std::uint32_t text = 0, nothing = 0;
};
static_assert(sizeof(Begin) == 48);

}  // namespace

std::vector<std::byte> to_bytes(const Header& header) {
  const Begin begin = {.kind = static_cast<std::uint32_t>(header.kind),
                       .number = header.number,
                       .origin = header.origin,
                       .part = header.part,
                       .parts = header.parts,
                       .day = header.day,
                       .shrinks = header.shrinks,
                       .text = static_cast<std::uint32_t>(header.definition.size())};
  std::vector<std::byte> bytes(sizeof begin + header.definition.size() + sizeof(std::uint32_t));
  std::memcpy(bytes.data(), &begin, sizeof begin);
  std::memcpy(bytes.data() + sizeof begin, header.definition.data(), header.definition.size());
  const std::uint32_t crc = crc32c(std::span(bytes).first(bytes.size() - sizeof crc));
  std::memcpy(bytes.data() + bytes.size() - sizeof crc, &crc, sizeof crc);
  return bytes;
}

SavedFile::SavedFile(FileSystem& files, const std::filesystem::path& path)
    : path_(path.string()), file_(files.open(path)) {
  Begin begin;
  const auto damaged = [&](const char* what) { fail(ErrorKind::Corrupt, "ps: ", path_, ": ", what); };
  if (file_->bytes() < static_cast<std::int64_t>(sizeof begin)) damaged("too short to be a saved table");
  file_->read(0, std::as_writable_bytes(std::span(&begin, 1)));
  if (begin.magic != kMagic) damaged("not a saved table");
  if (begin.text > kMostText) damaged("the header is damaged");
  std::vector<std::byte> all(sizeof begin + begin.text + sizeof(std::uint32_t));
  if (file_->bytes() < static_cast<std::int64_t>(all.size())) damaged("the header is cut short");
  file_->read(0, all);
  std::uint32_t crc = 0;
  std::memcpy(&crc, all.data() + all.size() - sizeof crc, sizeof crc);
  if (crc != crc32c(std::span(all).first(all.size() - sizeof crc))) damaged("the header is damaged");
  if (begin.kind > static_cast<std::uint32_t>(SaveKind::Base))
    damaged("a kind of save that this version lacks");
  header_ = {.kind = static_cast<SaveKind>(begin.kind),
             .number = begin.number,
             .origin = begin.origin,
             .part = begin.part,
             .parts = begin.parts,
             .day = begin.day,
             .shrinks = begin.shrinks,
             .definition = std::string(reinterpret_cast<const char*>(all.data()) + sizeof begin, begin.text)};
  first_chunk_ = static_cast<std::int64_t>(all.size());
}

void SavedFile::for_each_chunk(
    const std::function<void(const ChunkHead&, std::span<const std::byte>)>& visit) const {
  std::vector<std::byte> payload;
  std::array<std::int64_t, 2> totals = {}, wanted = {};
  for (std::int64_t at = first_chunk_;;) {
    const auto damaged = [&](const char* what) {
      fail(ErrorKind::Corrupt, "ps: ", path_, ": byte ", at, ": ", what);
    };
    ChunkHead head;
    std::uint32_t crc = 0;
    const auto left = file_->bytes() - at;
    if (left < static_cast<std::int64_t>(sizeof head + sizeof crc)) damaged("the file is cut short");
    file_->read(at, std::as_writable_bytes(std::span(&head, 1)));
    if (head.bytes > kMostChunkBytes) damaged("a damaged chunk");
    if (left < static_cast<std::int64_t>(sizeof head + head.bytes + sizeof crc))
      damaged("a chunk is cut short");
    payload.resize(head.bytes + sizeof crc);
    file_->read(at + static_cast<std::int64_t>(sizeof head), payload);
    std::memcpy(&crc, payload.data() + head.bytes, sizeof crc);
    const auto content = std::span(payload).first(head.bytes);
    if (crc != crc32c(content, crc32c(bytes_of(head)))) damaged("a damaged chunk");
    at += static_cast<std::int64_t>(sizeof head + payload.size());
    if (head.what == ChunkKind::End) {
      if (head.bytes != sizeof wanted) damaged("a damaged end");
      std::memcpy(wanted.data(), content.data(), sizeof wanted);
      if (wanted != totals) damaged("chunks are missing");
      if (at != file_->bytes()) damaged("there is more after the end");
      return;
    }
    if (head.what != ChunkKind::Rows && head.what != ChunkKind::Removed) damaged("an unknown chunk");
    totals[head.what == ChunkKind::Rows ? 0 : 1] += head.count;
    visit(head, content);
  }
}

}  // namespace shoal::ps
