// SPDX-License-Identifier: Apache-2.0
// Twice through each file: the first time all is checked, the second time the table is changed.
#include <cstring>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/save.h"
#include "shoal/ps/save_format.h"

namespace shoal::ps {

namespace {

// How the rows of one set of parts lie in a chunk.
class RowFormat {
 public:
  RowFormat(const Table& table, std::uint32_t parts, bool with_state) : scored_(table.definition().scored) {
    row_.parts = parts;
    bytes_ = sizeof row_.key + (scored_ ? sizeof row_.usage : 0);
    for (std::size_t part = 0; part < table.definition().parts.size(); ++part) {
      if (((parts >> part) & 1U) == 0) continue;
      sizes_.push_back(table.value_bytes(part));
      sizes_.push_back(with_state ? table.part_bytes(part) - table.value_bytes(part) : 0);
      bytes_ += sizes_[sizes_.size() - 2] + sizes_.back();
    }
    row_.content.resize(sizes_.size());
  }
  std::size_t bytes() const { return bytes_; }

  // Borrows from the bytes.
  const Row& row(std::span<const std::byte> bytes) {
    const auto take = [&](std::size_t size) {
      const auto taken = bytes.first(size);
      bytes = bytes.subspan(size);
      return taken;
    };
    std::memcpy(&row_.key, take(sizeof row_.key).data(), sizeof row_.key);
    if (scored_) std::memcpy(&row_.usage, take(sizeof row_.usage).data(), sizeof row_.usage);
    for (std::size_t i = 0; i < sizes_.size(); ++i) row_.content[i] = take(sizes_[i]);
    return row_;
  }

 private:
  bool scored_;
  std::size_t bytes_ = 0;
  std::vector<std::size_t> sizes_;
  Row row_;
};

}  // namespace

// Parts that every row has, and those that there are.
static bool are_parts(const Definition& definition, std::uint32_t parts) {
  for (std::size_t part = 0; part < definition.parts.size(); ++part)
    if (definition.parts[part].earned_at == 0 && ((parts >> part) & 1U) == 0) return false;
  return parts >> definition.parts.size() == 0;
}

static void check_chunk(const Table& table, const SavedFile& file, const ChunkHead& head) {
  const bool with_state = file.header().kind != SaveKind::Base;
  std::size_t wanted = sizeof(std::uint64_t);
  if (head.what == ChunkKind::Rows) {
    SHOAL_CHECK(are_parts(table.definition(), head.parts), Corrupt, "ps: ", file.path(),
                ": a row has parts that its table lacks");
    wanted = RowFormat(table, head.parts, with_state).bytes();
  }
  SHOAL_CHECK(head.bytes == wanted * head.count, Corrupt, "ps: ", file.path(), ": a chunk of ", head.count,
              " rows of ", wanted, " bytes has ", head.bytes);
}

static void check_table(const Table& table, const SavedFile& file) {
  const Header& header = file.header();
  const std::string where = concat("ps: ", file.path(), ": ");
  const std::string differs = difference(table.definition(), definition_from_text(header.definition));
  SHOAL_CHECK(differs.empty(), InvalidInput, where, "saved from another table than ",
              in_quotes(table.definition().name), ": ", differs);
  if (header.kind != SaveKind::Delta) {
    SHOAL_CHECK(table.num_rows() == 0, InvalidInput, where, "table ", in_quotes(table.definition().name),
                " has ", table.num_rows(), " rows already; load into a new one");
    return;
  }
  const Saved& saved = table.saved();
  SHOAL_CHECK(header.origin == saved.origin, InvalidInput, where, "a delta of save ", header.origin,
              ", and the table has ", saved.origin == 0 ? "none" : std::to_string(saved.origin));
  SHOAL_CHECK(header.number == saved.number + 1, InvalidInput, where, "delta ", header.number,
              ", and the table wants ", saved.number + 1, "; load them in order");
}

// That the files are all those of one save.
static void check_set(const std::vector<SavedFile>& all) {
  const Header& first = all.front().header();
  std::vector<bool> there(all.size());
  for (const SavedFile& file : all) {
    const Header& header = file.header();
    SHOAL_CHECK(header.kind == first.kind && header.origin == first.origin && header.number == first.number,
                InvalidInput, "ps: ", file.path(), " and ", all.front().path(), " are not of the same save");
    SHOAL_CHECK(header.shrinks == first.shrinks, InvalidInput, "ps: ", file.path(), ": a delta over ",
                header.shrinks, " shrinks, and ", all.front().path(), " is one over ", first.shrinks,
                "; all servers shrink alike");
    SHOAL_CHECK(header.parts == all.size(), InvalidInput, "ps: ", file.path(), ": one of ", header.parts,
                " files of its save, and ", all.size(), " were given");
    SHOAL_CHECK(header.part < all.size() && !there[header.part], InvalidInput, "ps: ", file.path(), ": part ",
                header.part, " of its save is there twice");
    there[header.part] = true;
  }
}

static void load_chunk(Table& table, const SavedFile& file, const ChunkHead& head,
                       std::span<const std::byte> bytes, const Keeps& keeps, SaveReport& report) {
  if (head.what == ChunkKind::Removed) {
    for (std::uint32_t i = 0; i < head.count; ++i) {
      std::uint64_t key = 0;
      std::memcpy(&key, bytes.data() + i * sizeof key, sizeof key);
      report.removed += table.erase(key) ? 1 : 0;
    }
    return;
  }
  RowFormat format(table, head.parts, file.header().kind != SaveKind::Base);
  for (; !bytes.empty(); bytes = bytes.subspan(format.bytes())) {
    const Row& row = format.row(bytes);
    if (keeps && !keeps(row.key)) continue;
    table.put(row);
    ++report.rows;
  }
}

SaveReport load(Table& table, FileSystem& files, std::span<const std::filesystem::path> paths,
                const Keeps& keeps) {
  SHOAL_CHECK(!paths.empty(), InvalidInput, "ps: table ", in_quotes(table.definition().name),
              ": no files to load");
  std::vector<SavedFile> all;
  all.reserve(paths.size());
  for (const auto& path : paths) all.emplace_back(files, path);
  check_set(all);
  for (const SavedFile& file : all) {
    check_table(table, file);
    file.for_each_chunk(
        [&](const ChunkHead& head, std::span<const std::byte>) { check_chunk(table, file, head); });
  }
  SaveReport report;
  table.decay(all.front().header().shrinks);
  // A key that went and came again is in both kinds of chunk: it is there.
  for (const ChunkKind wanted : {ChunkKind::Removed, ChunkKind::Rows})
    for (const SavedFile& file : all) {
      if (wanted == ChunkKind::Removed && file.header().kind != SaveKind::Delta) continue;
      file.for_each_chunk([&](const ChunkHead& head, std::span<const std::byte> bytes) {
        if (head.what == wanted) load_chunk(table, file, head, bytes, keeps, report);
      });
      if (wanted == ChunkKind::Rows) report.bytes += file.bytes();
    }
  const Header& header = all.front().header();
  table.set_day(std::max(table.day(), header.day));
  if (header.kind != SaveKind::Base) table.mark_saved({.origin = header.origin, .number = header.number});
  return report;
}

}  // namespace shoal::ps
