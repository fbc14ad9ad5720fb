// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/machine.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::elastic {

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(static_cast<unsigned>(core), &set)) cores.push_back(core);
  if (cores.empty()) cores = {0};
  return cores;
}

// A rank needs four descriptors here, and a process at least its stack and the C library's pages.
void check_machine(int ranks) {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    const rlim_t needed = 64 + 4 * static_cast<rlim_t>(ranks);
    files.rlim_cur = std::min(std::max(files.rlim_cur, needed), files.rlim_max);
    setrlimit(RLIMIT_NOFILE, &files);
    SHOAL_CHECK(files.rlim_cur >= needed, Infeasible, "run: ", ranks, " ranks need ", needed,
                " descriptors, ", files.rlim_cur, " are allowed; raise ulimit -n, or start fewer ranks");
  }
  std::ifstream file("/proc/meminfo");
  std::string word;
  std::int64_t kibibytes = 0;
  while (file >> word)
    if (word == "MemAvailable:" && file >> kibibytes) break;
  constexpr std::int64_t kLeast = 4 << 20;
  SHOAL_CHECK(kibibytes == 0 || kibibytes * 1024 / ranks >= kLeast, Infeasible, "run: ", ranks,
              " ranks have ", human_bytes(kibibytes * 1024 / ranks), " of memory each, wanted at least ",
              human_bytes(kLeast), "; start fewer ranks on this host");
}

std::int64_t num_killed_for_memory() {
  std::ifstream file("/proc/vmstat");
  std::string word;
  std::int64_t num = 0;
  while (file >> word >> num)
    if (word == "oom_kill") return num;
  return 0;
}

}  // namespace shoal::elastic
