// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/calibrate.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/calibration.h"
#include "shoal/cli/forecast.h"
#include "shoal/cli/prediction.h"
#include "shoal/cli/run.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cost/cluster.h"
#include "shoal/elastic/join.h"
#include "shoal/observe/file.h"
#include "shoal/simulate/comparison.h"

namespace shoal::cli {

void check(const Calibrate& options) {
  SHOAL_CHECK(!options.out.empty() && !std::filesystem::is_directory(options.out), InvalidInput,
              "calibrate: -o is \"", options.out, "\", wanted the file to write");
  const std::filesystem::path folder = std::filesystem::absolute(options.out).parent_path();
  SHOAL_CHECK(::access(folder.c_str(), W_OK) == 0, InvalidInput, "calibrate: cannot write to ",
              folder.string(), ": ", std::strerror(errno));
}

static int start(const Calibrate& options) {
  Run started;
  const std::string shoal = std::filesystem::read_symlink("/proc/self/exe").string();
  started.launch.command = {shoal, "calibrate", concat("--output=", options.out)};
  started.launch.ranks = options.ranks;
  check(started);
  return run(started);
}

static int learn_from_run(const Calibrate& options) {
  SHOAL_CHECK(options.ranks == 1, InvalidInput,
              "calibrate: --from-trace learns from ranks that have trained; leave -n out");
  const auto [cluster, hosts, comparison] = read_simulated(options.from_trace);
  observe::write_file(options.out, to_toml(simulate::learned(cluster, {&comparison, 1}, hosts)));
  say(to_text(comparison));
  say(concat(options.out, ": what ", options.from_trace, " was simulated on, mended by ",
             comparison.ops.size(), " ops of ", comparison.steps, " steps"));
  return 0;
}

int calibrate(const Calibrate& options) {
  if (!options.from_trace.empty()) return learn_from_run(options);
  const bool is_alone = elastic::place_of(elastic::environment_of(environ)).starter == "alone";
  SHOAL_CHECK(is_alone || options.ranks == 1, InvalidInput,
              "calibrate: -n starts ranks, and this process is one of a job already; leave -n out");
  if (options.ranks > 1) return start(options);
  const auto begin = std::chrono::steady_clock::now();
  const Peers peers;
  at::set_num_threads(threads_of_rank(peers.of_this_host()));
  const auto [cluster, worst_spread] = calibrated(peers);
  if (peers.rank() != 0) return 0;
  constexpr double kNoisy = 0.2;
  if (worst_spread > kNoisy) {
    char text[128];
    std::snprintf(text, sizeof text,
                  "noisy: the spread is %.0f %% at most, above 20 %%; other programs seem to be busy",
                  100 * worst_spread);
    say(text);
  }
  observe::write_file(options.out, to_toml(cluster));
  char took[32];
  std::snprintf(took, sizeof took, "%.1f s",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  say(concat(options.out, ": ", cluster.machine, ", measured in ", took));
  return 0;
}

}  // namespace shoal::cli
