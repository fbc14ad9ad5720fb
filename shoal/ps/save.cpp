// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/save.h"

#include <map>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/save_format.h"

namespace shoal::ps {

namespace {

class Writer {
 public:
  Writer(FileSystem& files, const std::filesystem::path& path) : file_(files.create(path)) {}

  void header(const Header& header) { write(to_bytes(header)); }
  void chunk(const ChunkHead& head, std::span<const std::byte> payload) {
    const auto begin = bytes_of(head);
    const std::uint32_t crc = crc32c(payload, crc32c(begin));
    write(begin);
    write(payload);
    write(std::as_bytes(std::span(&crc, 1)));
  }
  void sync() { file_->sync(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  void write(std::span<const std::byte> bytes) {
    file_->write(bytes);
    bytes_ += static_cast<std::int64_t>(bytes.size());
  }
  std::unique_ptr<OutputFile> file_;
  std::int64_t bytes_ = 0;
};

// Rows that are to become a chunk: they have the same parts.
struct Pending {
  std::vector<std::byte> bytes;
  std::uint32_t rows = 0;
};

}  // namespace

static void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

static void append_row(std::vector<std::byte>& to, const Row& row, bool scored, bool with_state) {
  append(to, std::as_bytes(std::span(&row.key, 1)));
  if (scored) append(to, std::as_bytes(std::span(&row.usage, 1)));
  for (std::size_t i = 0; i < row.content.size(); ++i)
    if (with_state || i % 2 == 0) append(to, row.content[i]);
}

static Header header_of(const Table& table, const SaveOptions& options) {
  const Definition& definition = table.definition();
  const std::string where = concat("ps: table ", in_quotes(definition.name), ": ");
  SHOAL_CHECK(options.part < options.parts, InvalidInput, where, "part ", options.part, " of ", options.parts,
              " of a save: parts count from 0");
  Header header = {.kind = options.kind,
                   .origin = options.origin,
                   .part = options.part,
                   .parts = options.parts,
                   .day = table.day(),
                   .definition = to_text(definition)};
  switch (options.kind) {
    case SaveKind::Full:
      SHOAL_CHECK(options.origin != 0, InvalidInput, where, "a full save wants an origin other than 0");
      break;
    case SaveKind::Delta:
      SHOAL_CHECK(table.saved().origin != 0, InvalidInput, where,
                  "there is no full save that a delta could be one of; save it in full first");
      header.origin = table.saved().origin;
      header.number = table.saved().number + 1;
      header.shrinks = table.shrinks_since_save();
      break;
    case SaveKind::Base:
      SHOAL_CHECK(definition.scored || options.min_score == 0, InvalidInput, where,
                  "a base by score wants scored = true in the definition");
      break;
  }
  return header;
}

std::filesystem::path file_of(const std::filesystem::path& path, std::uint32_t part) {
  return path.parent_path() / concat(path.filename().string(), ".", part);
}

std::vector<std::filesystem::path> files_of(FileSystem& files, const std::filesystem::path& path) {
  std::vector<std::filesystem::path> all;
  const std::string begin = path.filename().string() + ".";
  for (const std::string& name : files.list(path.parent_path().empty() ? "." : path.parent_path()))
    if (name.size() > begin.size() && name.starts_with(begin) &&
        name.find_first_not_of("0123456789", begin.size()) == std::string::npos)
      all.push_back(path.parent_path() / name);
  SHOAL_CHECK(!all.empty(), InvalidInput, "ps: there are no files ", path.string(),
              ".0, .1, …: nothing was saved there");
  return all;
}

SaveReport save(Table& table, FileSystem& files, const std::filesystem::path& path,
                const SaveOptions& options) {
  const Header header = header_of(table, options);
  const bool scored = table.definition().scored, is_delta = options.kind == SaveKind::Delta;
  const bool with_state = options.kind != SaveKind::Base;
  SaveReport report;
  Writer writer(files, path);
  writer.header(header);
  std::map<std::uint32_t, Pending> pending;
  const auto flush = [&](std::uint32_t parts, Pending& rows) {
    if (rows.rows > 0)
      writer.chunk({.what = ChunkKind::Rows,
                    .parts = parts,
                    .count = rows.rows,
                    .bytes = static_cast<std::uint32_t>(rows.bytes.size())},
                   rows.bytes);
    rows.bytes.clear();
    rows.rows = 0;
  };
  for (std::uint32_t shard = 0; shard < table.definition().shards; ++shard) {
    if (is_delta && !table.removed(shard).empty()) {
      const auto keys = std::as_bytes(table.removed(shard));
      const auto count = static_cast<std::uint32_t>(table.removed(shard).size());
      writer.chunk(
          {.what = ChunkKind::Removed, .count = count, .bytes = static_cast<std::uint32_t>(keys.size())},
          keys);
      report.removed += count;
    }
    table.for_each_row(shard, is_delta, [&](const Row& row) {
      if (!with_state && scored && table.score(row.usage) < options.min_score) return;
      Pending& rows = pending[row.parts];
      append_row(rows.bytes, row, scored, with_state);
      ++rows.rows;
      ++report.rows;
      if (rows.bytes.size() >= kChunkBytes) flush(row.parts, rows);
    });
  }
  for (auto& [parts, rows] : pending) flush(parts, rows);
  const std::array<std::int64_t, 2> totals = {report.rows, report.removed};
  writer.chunk({.what = ChunkKind::End, .bytes = sizeof totals}, std::as_bytes(std::span(totals)));
  writer.sync();
  report.bytes = writer.bytes();
  if (with_state) table.mark_saved({.origin = header.origin, .number = header.number});
  return report;
}

}  // namespace shoal::ps
