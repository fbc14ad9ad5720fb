// SPDX-License-Identifier: Apache-2.0
// Regions are mapped whole and touched chunk by chunk; the kernel is asked for pages of 2 MiB, as rows are
// read in no order and each would cost a page walk.
#include "shoal/ps/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::ps {

static constexpr std::size_t kPage = std::size_t{2} << 20;

static std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

Arena::Arena(const std::vector<std::size_t>& strides) {
  for (const std::size_t stride : strides)
    columns_.push_back({.stride = stride,
                        .region_bytes = rounded_up(kRegion * stride, kPage),
                        .regions = std::vector<std::byte*>(std::size_t{1} << (32 - kRegionBits))});
}

Arena::~Arena() {
  for (const Column& column : columns_)
    for (std::byte* region : column.regions)
      if (region) munmap(region, column.region_bytes);
}

// Of whole pages, aligned.
static std::byte* mapped(std::size_t bytes) {
  void* const all = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SHOAL_CHECK(all != MAP_FAILED, Infeasible, "ps: no memory for ",
              human_bytes(static_cast<std::int64_t>(bytes)), " of rows: ", std::strerror(errno),
              "; bound the table's rows (life.max_rows) or add a server");
  auto* const begin = static_cast<std::byte*>(all);
  const auto address = reinterpret_cast<std::uintptr_t>(all);
  const std::size_t before = rounded_up(address, kPage) - address;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kPage - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}

std::uint32_t Arena::take_chunk() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t first = taken_;
  SHOAL_CHECK(first + kChunk < (std::uint64_t{1} << 32), Infeasible,
              "ps: a table has at most 2^32 rows on a server; add a server");
  for (Column& column : columns_) {
    std::byte*& region = column.regions[first >> kRegionBits];
    if (!region) region = mapped(column.region_bytes);
  }
  taken_ = first + kChunk;
  return static_cast<std::uint32_t>(first);
}

std::int64_t Arena::bytes() const {
  std::size_t stride = 0;
  for (const Column& column : columns_) stride += column.stride;
  return static_cast<std::int64_t>(taken_ * stride);
}

std::uint32_t Slots::take(Arena& arena) {
  if (!free_.empty()) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (left_ == 0) {
    next_ = arena.take_chunk();
    left_ = Arena::kChunk;
  }
  --left_;
  return next_++;
}

}  // namespace shoal::ps
