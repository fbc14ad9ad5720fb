// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/ps_rows.h"

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/serving.h"
#include "shoal/ps/save.h"
#include "shoal/ps/save_format.h"

namespace shoal::cli {

namespace fs = std::filesystem;

namespace {

struct Saved {
  std::size_t num_files = 0;
  std::unique_ptr<ps::Table> table;
  ps::SaveReport report;
};

}  // namespace

static Saved read(FileSystem& files, const fs::path& path) {
  Saved saved;
  for (const fs::path& save : ps::saves_up_to(files, path)) {
    const std::vector<fs::path> all = ps::files_of(files, save);
    if (saved.table == nullptr)
      saved.table = std::make_unique<ps::Table>(
          ps::definition_from_text(ps::SavedFile(files, all.front()).header().definition));
    saved.report += ps::load(*saved.table, files, all);
    saved.num_files += all.size();
  }
  return saved;
}

static std::vector<std::uint64_t> keys_of(const ps::Table& table) {
  std::vector<std::uint64_t> keys;
  for (std::uint32_t shard = 0; shard < table.definition().shards; ++shard)
    table.for_each_row(shard, [&](const ps::Row& row) { keys.push_back(row.key); });
  std::ranges::sort(keys);
  return keys;
}

void check(PsRows& options) {
  SHOAL_CHECK(options.min_score >= 0, InvalidInput, "ps export: --min-score is ", options.min_score,
              ", wanted at least 0");
  SHOAL_CHECK(options.batch >= 1, InvalidInput, "ps export: --batch is ", options.batch,
              ", wanted at least 1");
}

int ps_inspect(const PsRows& options) {
  DiskFileSystem files;
  const Saved saved = read(files, options.path);
  const ps::Table& table = *saved.table;
  char digest[17];
  std::snprintf(digest, sizeof digest, "%016" PRIx64, table.digest());
  say(concat(ps::to_text(table.definition()), "rows ", table.num_rows(), ", digest ", digest, ", day ",
             table.day(), "\n", human_bytes(saved.report.bytes), " in ", saved.num_files, " files, ",
             human_bytes(table.memory_bytes()), " in memory"));
  return 0;
}

int ps_dump(const PsRows& options) {
  DiskFileSystem files;
  const Saved saved = read(files, options.path);
  const ps::Table& table = *saved.table;
  std::string line = "key";
  for (std::size_t part = 0; part < table.definition().parts.size(); ++part)
    for (std::uint32_t i = 0; i < table.definition().parts[part].width; ++i)
      line += concat(",part", part, ".", i);
  std::puts(line.c_str());
  constexpr std::size_t kAtOnce = 4096;
  const std::vector<std::uint64_t> keys = keys_of(table);
  for (std::size_t begin = 0; begin < keys.size(); begin += kAtOnce) {
    const auto some = std::span(keys).subspan(begin, std::min(kAtOnce, keys.size() - begin));
    ps::with_number(ps::is_wide(table.definition().dtype), [&](auto number) {
      std::vector<decltype(number)> rows(some.size() * table.width());
      table.pull(some, rows);
      for (std::size_t i = 0; i < some.size(); ++i) {
        line = std::to_string(some[i]);
        for (std::size_t value = 0; value < table.width(); ++value) {
          char text[32];  // of as many digits as bring it back
          std::snprintf(text, sizeof text, ",%.*g", sizeof number == sizeof(double) ? 17 : 9,
                        static_cast<double>(rows[i * table.width() + value]));
          line += text;
        }
        std::puts(line.c_str());
      }
    });
  }
  return 0;
}

Exported export_rows(FileSystem& files, const fs::path& path, const fs::path& to, double min_score) {
  const Saved saved = read(files, path);
  const ps::SaveReport report =
      ps::save(*saved.table, files, ps::file_of(to, 0),
               {.kind = ps::SaveKind::Base, .min_score = static_cast<float>(min_score)});
  return {.rows = report.rows, .of = saved.table->num_rows(), .bytes = report.bytes};
}

int ps_export(const PsRows& options) {
  DiskFileSystem files;
  SHOAL_CHECK(fs::weakly_canonical(options.to) != fs::weakly_canonical(options.path), InvalidInput,
              "ps export: ", options.to,
              " is the save itself, which would lose what its rows are trained "
              "with. Remedy: another name");
  if (fs::is_directory(options.path) && !files.exists(ps::file_of(options.path, 0))) {
    export_model(options.path, options.to, options.min_score, options.batch);
    return 0;
  }
  const auto [rows, all, bytes] = export_rows(files, options.path, options.to, options.min_score);
  say(concat(ps::file_of(options.to, 0).string(), ": ", rows, " of ", all, " rows, ", human_bytes(bytes)));
  return 0;
}

}  // namespace shoal::cli
