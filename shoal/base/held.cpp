// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/held.h"

#include <array>
#include <atomic>

namespace shoal {

namespace {
struct Counts {
  std::array<std::atomic<std::int64_t>, 2> now = {};
  std::atomic<std::int64_t> most{0};

  std::int64_t all() const {
    return now[0].load(std::memory_order_relaxed) + now[1].load(std::memory_order_relaxed);
  }
};
}  // namespace

static Counts& counts() {
  static Counts all;
  return all;
}

std::int64_t hold(Holder holder, std::int64_t bytes) noexcept {
  Counts& all = counts();
  const std::int64_t now =
      all.now[static_cast<std::size_t>(holder)].fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (bytes <= 0) return now;
  const std::int64_t together = all.all();
  std::int64_t before = all.most.load(std::memory_order_relaxed);
  while (together > before && !all.most.compare_exchange_weak(before, together, std::memory_order_relaxed)) {
  }
  return now;
}

std::int64_t held(Holder holder) noexcept {
  return counts().now[static_cast<std::size_t>(holder)].load(std::memory_order_relaxed);
}

std::int64_t most_held() noexcept { return counts().most.exchange(counts().all()); }

}  // namespace shoal
