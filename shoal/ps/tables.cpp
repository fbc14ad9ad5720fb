// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/tables.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace shoal::ps {

SaveReport Tables::save(TableNumber table, const std::filesystem::path& path, std::uint64_t origin) {
  constexpr std::chrono::milliseconds kLongest{20};
  begin_save(table, path, origin);
  for (std::chrono::milliseconds between{1};; between = std::min(2 * between, kLongest)) {
    if (const auto report = saved(table)) return *report;
    std::this_thread::sleep_for(between);
  }
}

}  // namespace shoal::ps
