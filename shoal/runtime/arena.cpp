// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <limits>

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

void Arena::add(std::byte* at, std::size_t bytes) {
  free_.emplace(at, bytes);
  by_size_.emplace(bytes, at);
}

std::size_t Arena::remove(Parts::iterator part) {
  const std::size_t bytes = part->second;
  by_size_.erase({bytes, part->first});
  free_.erase(part);
  return bytes;
}

void Arena::touch(std::byte* begin, std::byte* end) {
  auto next = in_memory_.upper_bound(begin);
  if (next != in_memory_.begin() && std::prev(next)->second >= begin) --next;
  if (next != in_memory_.end() && next->first <= begin && next->second >= end) return;
  for (; next != in_memory_.end() && next->first <= end; next = in_memory_.erase(next)) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    in_memory_bytes_ -= next->second - next->first;
  }
  in_memory_.emplace(begin, end);
  in_memory_bytes_ += end - begin;
}

void Arena::leave(std::byte* begin, std::byte* end) {
  auto next = in_memory_.upper_bound(begin);
  if (next != in_memory_.begin() && std::prev(next)->second > begin) --next;
  while (next != in_memory_.end() && next->first < end) {
    const auto [first, last] = *next;
    next = in_memory_.erase(next);
    in_memory_bytes_ -= std::min(last, end) - std::max(first, begin);
    if (first < begin) in_memory_.emplace(first, begin);
    if (end < last) in_memory_.emplace(end, last);
  }
}

std::pair<std::byte*, std::int64_t> Arena::last_in_memory(std::byte* begin, std::byte* end,
                                                          std::int64_t bytes) const {
  std::int64_t found = 0;
  for (auto next = in_memory_.lower_bound(end); next != in_memory_.begin();) {
    --next;
    if (next->second <= begin) break;
    const std::byte* first = std::max(next->first, begin);
    std::byte* last = std::min(next->second, end);
    if (found + (last - first) >= bytes) return {last - (bytes - found), bytes};
    found += last - first;
  }
  return {begin, found};
}

std::byte* Arena::take(std::size_t bytes) {
  std::byte* block = nullptr;
  std::size_t found = bytes;
  if (const auto least = by_size_.lower_bound({bytes, nullptr}); least != by_size_.end()) {
    block = least->second;
    found = remove(free_.find(block));
  } else {
    // Behind the others, with what is free there.
    block = end_;
    const auto last = free_.empty() ? free_.end() : std::prev(free_.end());
    const bool reaches_end = last != free_.end() && last->first + last->second == end_;
    if (reaches_end) block = last->first;
    if (bytes > static_cast<std::size_t>(limit_ - block)) return nullptr;
    if (std::byte* wanted = block + bytes; wanted > usable_) {
      const std::size_t more = std::min(rounded_up(static_cast<std::size_t>(wanted - usable_), kStride),
                                        static_cast<std::size_t>(limit_ - usable_));
      if (mprotect(usable_, more, PROT_READ | PROT_WRITE) != 0) return nullptr;
      usable_ += more;
    }
    if (reaches_end) remove(last);
    end_ = block + bytes;
  }
  if (found > bytes) add(block + bytes, found - bytes);
  touch(block, block + bytes);
  taken_bytes_ += static_cast<std::int64_t>(bytes);
  return block;
}

void Arena::give(std::byte* block, std::size_t bytes) {
  taken_bytes_ -= static_cast<std::int64_t>(bytes);
  auto after = free_.lower_bound(block);
  if (after != free_.begin())
    if (const auto before = std::prev(after); before->first + before->second == block) {
      block = before->first;
      bytes += remove(before);
    }
  if (after != free_.end() && after->first == block + bytes) bytes += remove(after);
  add(block, bytes);
}

bool Arena::give_back(std::int64_t bytes) {
  std::int64_t most = 0;
  std::byte *begin = nullptr, *end = nullptr;
  for (const auto& [at, size] : free_) {
    constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
    const std::int64_t here = last_in_memory(at, at + size, kAll).second;
    if (here <= most) continue;
    most = here;
    begin = at;
    end = at + size;
  }
  if (most == 0) return false;
  begin = last_in_memory(begin, end, bytes).first;
  // Pages at its ends have memory of others in them: they stay, and are small.
  const std::size_t page = page_bytes();
  const auto first = rounded_up(reinterpret_cast<std::uintptr_t>(begin), page);
  const auto last = reinterpret_cast<std::uintptr_t>(end) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  leave(begin, end);
  return true;
}

}  // namespace shoal::runtime
