// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/tables.h"

#include <chrono>
#include <thread>

namespace shoal::ps {

SaveReport Tables::save(TableNumber table, const std::filesystem::path& path, std::uint64_t origin) {
  constexpr std::chrono::microseconds kBetweenLooks{500};
  begin_save(table, path, {.origin = origin, .number = 0});
  for (;; std::this_thread::sleep_for(kBetweenLooks))
    if (const auto report = saved(table)) return *report;
}

}  // namespace shoal::ps
