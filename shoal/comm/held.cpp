// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/held.h"

#include <atomic>

namespace shoal::comm {

namespace {
struct Counts {
  std::atomic<std::int64_t> now{0}, most{0};
};
}  // namespace

static Counts& counts() {
  static Counts all;
  return all;
}

std::int64_t most_held() noexcept {
  auto& [now, most] = counts();
  return most.exchange(now.load());
}

void hold(std::int64_t bytes) noexcept {
  auto& [now, most] = counts();
  const std::int64_t held = now.fetch_add(bytes) + bytes;
  std::int64_t before = most.load();
  while (held > before && !most.compare_exchange_weak(before, held)) {
  }
}

}  // namespace shoal::comm
