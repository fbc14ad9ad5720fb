// SPDX-License-Identifier: Apache-2.0
// What of tables was saved: shoal ps inspect | dump | export. A table is named by its files without their
// numbers, as outputs/deepfm/checkpoint/rows/step_00007812/rows.weight.
#pragma once

#include <string>

namespace shoal::cli {

struct PsRows {
  std::string path;
  std::string to;        // of an export
  double min_score = 0;  // the same: of the rows that are served
};
void check(PsRows& options);
int ps_inspect(const PsRows& options);  // what it is, and how much
int ps_dump(const PsRows& options);     // its rows by key, as CSV
int ps_export(const PsRows& options);   // one file of values alone, for serving

}  // namespace shoal::cli
