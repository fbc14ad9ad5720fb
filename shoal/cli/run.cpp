// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/run.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/cli/ps_servers.h"
#include "shoal/cli/verbs.h"
#include "shoal/elastic/place.h"
#include "shoal/elastic/process.h"

namespace shoal::cli {

void check(Run& options) {
  elastic::Launch& launch = options.launch;
  launch.log_folder = options.log_folder;
  launch.key_file = options.key_file;
  launch.limit = std::chrono::seconds(options.limit_seconds);
  launch.arrival = std::min(launch.arrival, launch.limit);
  if (!options.serve.memory.empty() && options.serve.cold_folder.empty() && !options.job_folder.empty())
    options.serve.cold_folder = std::filesystem::path(options.job_folder) / "cold";
  check(options.serve);
  SHOAL_CHECK(options.servers >= 0 && options.servers <= 1024, InvalidInput, "run: --servers is ",
              options.servers, ", wanted 0 to 1024");
  SHOAL_CHECK(options.servers > 0 || options.job_folder.empty(), InvalidInput, "run: --job-folder is ",
              options.job_folder,
              ", where shoal ps finds a job's servers, and there are none. Remedy: --servers=1");
  add_servers(launch, options.servers, options.serve, options.job_folder);
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

int start_ranks(const std::string& verb, const Options& options, const Recipe& recipe) {
  const elastic::Place place = elastic::place_of(elastic::environment_of(environ));
  SHOAL_CHECK(place.starter == "alone", InvalidInput, verb, ": -n ", options.ranks,
              " starts ranks, and this process is rank ", place.rank, " of ", place.size,
              " of a job already, by ", place.starter, "; leave -n out");
  Run started;
  const std::string shoal = std::filesystem::read_symlink("/proc/self/exe").string();
  started.launch.command = {shoal, verb};
  started.launch.command.insert(started.launch.command.end(), options.words.begin(), options.words.end());
  started.launch.ranks = std::max(options.ranks, 1);
  started.servers = static_cast<int>(recipe.ps.servers);
  started.serve = ps_serve_of(recipe);
  if (started.servers > 0) started.job_folder = recipe.job.dump_folder;
  started.launch.max_restarts = options.max_restarts;
  started.log_folder = options.log_folder;
  check(started);
  return run(started);
}

}  // namespace shoal::cli
