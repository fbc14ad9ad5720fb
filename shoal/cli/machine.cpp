// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/machine.h"

#include <ATen/Version.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "shoal/base/error.h"

namespace shoal::cli {

static std::string processor() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("model name"))
      if (const std::size_t colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "a processor";
}

std::string machine() {
  return concat(processor(), ", ", std::thread::hardware_concurrency(), " cores, ", at::get_cpu_capability());
}

std::int64_t total_memory_bytes() {
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

}  // namespace shoal::cli
