// SPDX-License-Identifier: Apache-2.0
// The parameter servers of a job that runs, by its job.dump_folder: shoal ps add | remove.
#pragma once

#include <string>

namespace shoal::cli {

struct PsJob {
  std::string folder;
  int servers = 1;  // to add
  int server = -1;  // to remove
};
void check(PsJob& options);
// Both return when all parts are where they are to be, or, with 130, when they are interrupted: the moves go on then.
int ps_add(const PsJob& options);
int ps_remove(const PsJob& options);

}  // namespace shoal::cli
