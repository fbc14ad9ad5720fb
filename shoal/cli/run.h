// SPDX-License-Identifier: Apache-2.0
// shoal run: starts a program once a rank, on this host or several.
#pragma once

#include <string>

#include "shoal/cli/ps_servers.h"
#include "shoal/elastic/launcher.h"

namespace shoal::cli {

struct Run {
  elastic::Launch launch;
  std::string log_folder, key_file;
  int limit_seconds = 300;
  int servers = 0;
  PsServe serve;
  std::string job_folder;
};

// Throws InvalidInput where the options make no sense.
void check(Run& options);
int run(const Run& options);

}  // namespace shoal::cli
