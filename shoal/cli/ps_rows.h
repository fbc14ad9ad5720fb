// SPDX-License-Identifier: Apache-2.0
// What of tables was saved: shoal ps inspect | dump | export. A table is named by its files without their
// numbers, as outputs/deepfm/checkpoint/rows/step_00007812/rows.weight.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "shoal/base/file_system.h"

namespace shoal::cli {

struct PsRows {
  std::string path;
  std::string to;            // of an export
  double min_score = 0;      // the same: of the rows that are served
  std::int64_t batch = 256;  // the same, of a model: samples that are scored at once
};
void check(PsRows& options);
int ps_inspect(const PsRows& options);  // what it is, and how much
int ps_dump(const PsRows& options);     // its rows by key, as CSV
int ps_export(
    const PsRows& options);  // one file of values alone, for serving; of a run, its model (serving.h)

struct Exported {
  std::int64_t rows = 0, of = 0, bytes = 0;  // that are served, of how many, in how many bytes
};
// Of the save of that path the values alone, of rows with at least that score, as TO.0.
Exported export_rows(FileSystem& files, const std::filesystem::path& path, const std::filesystem::path& to,
                     double min_score);

}  // namespace shoal::cli
