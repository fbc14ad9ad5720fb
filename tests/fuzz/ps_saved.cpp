// SPDX-License-Identifier: Apache-2.0
// A saved table, its checksums made right: a header by the input's first bytes, then chunks as long as it has any.
// What loads is saved and loaded again.
#include <cstring>
#include <vector>

#include "shoal/base/crc32c.h"
#include "shoal/base/memory_files_test.h"
#include "shoal/ps/save.h"
#include "shoal/ps/save_format.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace shoal;
using namespace shoal::ps;

// Bytes of the input, in order; zeros when it has none left.
class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
  T take() {
    T value = {};
    const auto bytes = take(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::span<const std::byte> take(std::size_t most) {
    const auto taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  bool is_empty() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

Definition definition() {
  return {.name = "ids",
          .dtype = DType::BFloat16,
          .shards = 2,
          .parts = {{.width = 1, .optimizer = {.rule = RowRule::Adam}}, {.width = 2, .earned_at = 2}},
          .scored = true,
          .life = {.show_weight = 1, .decay = 0.9f, .min_score = 0.5f, .max_rows = 900}};
}

void append(std::string& file, std::span<const std::byte> bytes) {
  file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void append_chunk(std::string& file, const ChunkHead& head, std::span<const std::byte> content) {
  const std::uint32_t crc = crc32c(content, crc32c(ps::bytes_of(head)));
  append(file, ps::bytes_of(head));
  append(file, content);
  append(file, std::as_bytes(std::span(&crc, 1)));
}

// Of a row with these parts, as save.h says.
std::size_t row_bytes(const Table& table, std::uint32_t parts, SaveKind kind) {
  std::size_t bytes = sizeof(std::uint64_t) + sizeof(Usage);
  for (std::size_t part = 0; part < table.definition().parts.size(); ++part)
    if (((parts >> part) & 1U) != 0)
      bytes += kind == SaveKind::Base ? table.value_bytes(part) : table.part_bytes(part);
  return bytes;
}

std::string file_of(Input input, const Table& table) {
  Header header;
  header.kind = static_cast<SaveKind>(input.take<std::uint8_t>() % 4);  // one more than there are
  header.number = input.take<std::uint8_t>();
  header.origin = input.take<std::uint8_t>();
  header.parts = 1 + input.take<std::uint8_t>() / 250;
  header.day = input.take<std::uint32_t>();
  header.shrinks = input.take<std::uint32_t>();
  header.definition = to_text(definition());
  std::string file;
  append(file, to_bytes(header));
  std::int64_t totals[2] = {};
  while (!input.is_empty()) {
    ChunkHead head;
    head.what = static_cast<ChunkKind>(1 + input.take<std::uint8_t>() % 4);
    head.parts = input.take<std::uint8_t>() % 8;
    head.count = input.take<std::uint8_t>() % 8;
    const auto wanted = input.take<std::uint16_t>();  // most often as long as it has to be
    std::vector<std::byte> content;
    if (wanted % 8 == 0) {
      const auto taken = input.take(wanted);
      content.assign(taken.begin(), taken.end());
    } else {
      const std::size_t each =
          head.what == ChunkKind::Rows ? row_bytes(table, head.parts, header.kind) : sizeof(std::uint64_t);
      const auto taken = input.take(each * head.count);
      content.assign(taken.begin(), taken.end());
      content.resize(each * head.count);
    }
    head.bytes = static_cast<std::uint32_t>(content.size());
    totals[head.what == ChunkKind::Rows ? 0 : 1] += head.count;
    append_chunk(file, head, content);
  }
  append_chunk(file, {.bytes = sizeof totals}, std::as_bytes(std::span(totals)));
  return file;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  MemoryFiles files;
  const std::vector<std::filesystem::path> given = {"given"}, again = {"again"};
  Table table(definition());
  files.contents["given"] = file_of(Input(fuzz::bytes_of(data, size)), table);
  const auto is_damaged = [&](Table& to, const auto& paths) {
    return !fuzz::refused_or_done([&] { load(to, files, paths); });
  };
  if (is_damaged(table, given)) {
    // A delta is one of what is there: try it on that.
    Table whole(definition());
    save(whole, files, "full", {.origin = 1});
    if (is_damaged(whole, given) && whole.num_rows() != 0)
      fuzz::give_up("a save was refused and changed the table");
    return 0;
  }
  save(table, files, "again", {.origin = 2});
  Table other(definition());
  if (is_damaged(other, again)) fuzz::give_up("what was loaded and saved is refused");
  if (other.digest() != table.digest()) fuzz::give_up("what was loaded, saved and loaded is another table");
  return 0;
}
