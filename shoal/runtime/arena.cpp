// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace shoal::runtime {

static constexpr std::size_t kStride = std::size_t{64} << 20;  // made usable at once

static std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

static std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// Addresses to reserve: four times the machine's memory, for what lies between blocks, or half of what a
// process is allowed (ulimit -v), which others want too.
static std::size_t wanted_bytes() {
  const std::size_t wanted = 4 * static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes();
  rlimit allowed{};
  if (getrlimit(RLIMIT_AS, &allowed) != 0 || allowed.rlim_cur == RLIM_INFINITY) return wanted;
  return std::min<std::size_t>(wanted, allowed.rlim_cur / 2);
}

Arena::Arena() {
  for (std::size_t bytes = wanted_bytes(); bytes >= kStride; bytes /= 2) {
    bytes = bytes / kStride * kStride;
    void* row = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (row != MAP_FAILED) {
      begin_ = end_ = usable_ = static_cast<std::byte*>(row);
      limit_ = begin_ + bytes;
      return;
    }
  }
}

void Arena::add(std::byte* at, Free free) {
  free_.emplace(at, free);
  by_size_.emplace(free.bytes, at);
  idle_bytes_ += static_cast<std::int64_t>(free.in_memory);
}

Arena::Free Arena::remove(Parts::iterator part) {
  const Free free = part->second;
  by_size_.erase({free.bytes, part->first});
  idle_bytes_ -= static_cast<std::int64_t>(free.in_memory);
  free_.erase(part);
  return free;
}

std::byte* Arena::take(std::size_t bytes) {
  std::byte* block = nullptr;
  Free free;
  if (const auto least = by_size_.lower_bound({bytes, nullptr}); least != by_size_.end()) {
    block = least->second;
    free = remove(free_.find(block));
  } else {
    // Behind the others, with what is free there.
    block = end_;
    const auto last = free_.empty() ? free_.end() : std::prev(free_.end());
    const bool reaches_end = last != free_.end() && last->first + last->second.bytes == end_;
    if (reaches_end) block = last->first;
    if (bytes > static_cast<std::size_t>(limit_ - block)) return nullptr;
    if (std::byte* wanted = block + bytes; wanted > usable_) {
      const std::size_t more = std::min(rounded_up(static_cast<std::size_t>(wanted - usable_), kStride),
                                        static_cast<std::size_t>(limit_ - usable_));
      if (mprotect(usable_, more, PROT_READ | PROT_WRITE) != 0) return nullptr;
      usable_ += more;
    }
    if (reaches_end) free = remove(last);
    end_ = block + bytes;
    free.bytes = bytes;
  }
  // Which of it is in memory nobody knows.
  if (const std::size_t rest = free.bytes - bytes; rest > 0)
    add(block + bytes, {.bytes = rest, .in_memory = std::min(free.in_memory, rest)});
  return block;
}

void Arena::give(std::byte* block, std::size_t bytes) {
  Free free = {.bytes = bytes, .in_memory = bytes};
  const auto join = [&](Parts::iterator part) {
    const Free other = remove(part);
    free.bytes += other.bytes;
    free.in_memory += other.in_memory;
  };
  auto after = free_.lower_bound(block);
  if (after != free_.begin())
    if (const auto before = std::prev(after); before->first + before->second.bytes == block) {
      block = before->first;
      join(before);
    }
  if (after != free_.end() && after->first == block + free.bytes) join(after);
  add(block, free);
}

bool Arena::give_back() {
  const auto most =
      std::ranges::max_element(free_, {}, [](const auto& part) { return part.second.in_memory; });
  if (most == free_.end() || most->second.in_memory == 0) return false;
  const std::size_t page = page_bytes();
  const auto first = rounded_up(reinterpret_cast<std::uintptr_t>(most->first), page);
  const auto last = reinterpret_cast<std::uintptr_t>(most->first + most->second.bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  idle_bytes_ -= static_cast<std::int64_t>(most->second.in_memory);
  most->second.in_memory = 0;
  return true;
}

}  // namespace shoal::runtime
