// SPDX-License-Identifier: Apache-2.0
// The parameter servers of a job that runs, by its job.dump_folder: shoal ps add | remove | top | save | shrink.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::cli {

struct PsJob {
  std::string folder;
  int servers = 1;           // to add
  int server = -1;           // to remove
  std::string table;         // of save and shrink: its name; empty: all of them
  std::string to;            // a folder to save to
  bool for_serving = false;  // values alone
  double min_score = 0;      // of rows that are served
  std::int64_t day = -1;     // that begins; -1: the one after the tables'
  double every = 1;          // seconds between two looks
  std::int64_t times = 0;    // looks; 0: until it is interrupted
};
void check(PsJob& options);
// Both return when all parts are where they are to be, or, with 130, when they are interrupted: the moves go on then.
int ps_add(const PsJob& options);
int ps_remove(const PsJob& options);
int ps_top(const PsJob& options);     // servers and tables, and what they are asked, once a while
int ps_save(const PsJob& options);    // tables into a folder, as they are
int ps_shrink(const PsJob& options);  // a day of theirs ends: rows expire

}  // namespace shoal::cli
