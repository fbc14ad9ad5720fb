// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/run.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/elastic/process.h"

namespace shoal::cli {

void check(Run& options) {
  elastic::Launch& launch = options.launch;
  launch.log_folder = options.log_folder;
  launch.key_file = options.key_file;
  launch.limit = std::chrono::seconds(options.limit_seconds);
  launch.arrival = std::min(launch.arrival, launch.limit);
  elastic::check(launch);
  SHOAL_CHECK(!launch.command[0].starts_with('-'), InvalidInput, "run: there is no option ",
              launch.command[0], "; shoal run --help names all");
  // As torchrun takes it: a script without being told of Python.
  if (std::filesystem::path(launch.command[0]).extension() == ".py")
    launch.command.insert(launch.command.begin(), "python3");
}

int run(const Run& options) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable; ++variable) environment.emplace_back(*variable);
  return elastic::run_guarded([&] { return elastic::run(options.launch, environment); });
}

}  // namespace shoal::cli
