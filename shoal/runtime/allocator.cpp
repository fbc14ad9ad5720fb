// SPDX-License-Identifier: Apache-2.0
// Every block begins with a header of one cache line:
//
//   | bytes asked for | where from | counted | class | … 64 bytes | what the tensor sees
//
// A header on every block, wherever it is from, lets one deleter serve all and keeps the counts exact.
//
// Small blocks of the pool have size classes, eight to a power of two, each with a stack of idle blocks; the
// last one freed, still in the cache, is the first to go out again. Large ones are cut from an arena, where
// memory that one tensor has left serves others of any size. With what is live the pool holds no more than
// there once was alive, and a sixteenth: what is past that is given back, of the part of the arena that has the most
// or of the class that waited longest.
#include "shoal/runtime/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "shoal/base/held.h"
#include "shoal/runtime/arena.h"

namespace shoal::runtime {

namespace {

constexpr std::size_t kAlignment = Arena::kAlignment;
constexpr std::size_t kSteps = 8;  // classes to a power of two
constexpr std::size_t kLarge = std::size_t{256} << 10;
constexpr std::int64_t kSlack = std::int64_t{16} << 20;

enum class From : std::uint8_t { System, Pool, Arena };

struct alignas(kAlignment) Header {
  std::size_t bytes;
  From from;
  bool is_counted;
  std::uint32_t size_class;  // of the pool's
};
static_assert(sizeof(Header) == kAlignment);

// With its header, without gaps.
constexpr std::size_t whole(std::size_t bytes) {
  return sizeof(Header) + (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The class whose blocks hold this many bytes, and how many those are.
constexpr std::uint32_t class_of(std::size_t bytes) {
  const std::size_t rounded = std::max<std::size_t>(bytes, 512);
  const auto power =
      static_cast<std::size_t>(std::bit_width(rounded - 1) - 1);  // 2^power < rounded ≤ 2^(power + 1)
  const std::size_t step = (std::size_t{1} << power) / kSteps;
  return static_cast<std::uint32_t>(power * kSteps + (rounded - (std::size_t{1} << power) + step - 1) / step -
                                    1);
}
constexpr std::size_t bytes_in(std::uint32_t size_class) {
  const std::size_t power = size_class / kSteps;
  return (std::size_t{1} << power) + (size_class % kSteps + 1) * ((std::size_t{1} << power) / kSteps);
}
static_assert(bytes_in(class_of(512)) == 512 && bytes_in(class_of(1025)) == 1152 &&
              bytes_in(class_of(1152)) == 1152);
constexpr std::size_t kClasses = class_of(kLarge) + 1;

struct Counts {
  std::atomic<std::int64_t> peak{0};
  std::atomic<std::int64_t> most{0};  // of the peaks before

  void add(std::int64_t bytes) {
    const std::int64_t now = hold(Holder::Tensors, bytes);
    std::int64_t peak_before = peak.load(std::memory_order_relaxed);
    while (now > peak_before && !peak.compare_exchange_weak(peak_before, now, std::memory_order_relaxed)) {
    }
  }
  std::int64_t most_ever() const {
    return std::max(peak.load(std::memory_order_relaxed), most.load(std::memory_order_relaxed));
  }
};

// Any thread; the mutex guards everything in it.
class Pool {
 public:
  // Null where the system is to be asked: for a whole block of its class.
  Header* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes >= kLarge) {
      auto* block = reinterpret_cast<Header*>(arena_.take(whole(bytes)));
      if (block != nullptr) block->from = From::Arena;
      return block;
    }
    // A block of up to a quarter more will do.
    const std::uint32_t size_class = class_of(bytes);
    for (std::uint32_t candidate = size_class; candidate <= size_class + 2 && candidate < kClasses;
         ++candidate) {
      auto& blocks = idle_[candidate].blocks;
      if (blocks.empty()) continue;
      Header* block = blocks.back();
      blocks.pop_back();
      idle_bytes_ -= static_cast<std::int64_t>(bytes_in(candidate));
      return block;
    }
    return nullptr;
  }

  // `limit`: what may be idle.
  void give(Header* block, std::int64_t limit) {
    const std::lock_guard lock(mutex_);
    if (block->from == From::Arena) {
      arena_.give(reinterpret_cast<std::byte*>(block), whole(block->bytes));
    } else {
      auto& idle = idle_[block->size_class];
      idle.blocks.push_back(block);
      idle.last_use = ++clock_;
      idle_bytes_ += static_cast<std::int64_t>(bytes_in(block->size_class));
    }
    shrink(limit);
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    shrink(0);
  }

  std::int64_t idle_bytes() {
    const std::lock_guard lock(mutex_);
    return idle_bytes_ + arena_.idle_bytes();
  }

 private:
  struct Idle {
    std::vector<Header*> blocks;
    std::uint64_t last_use = 0;
  };

  void shrink(std::int64_t limit) {
    constexpr std::int64_t kLeast = std::int64_t{1} << 20;  // at once: a call of the system's for each
    for (std::int64_t more = 0; (more = idle_bytes_ + arena_.idle_bytes() - limit) > 0;) {
      if (arena_.idle_bytes() >= idle_bytes_)
        arena_.give_back(std::max(more, kLeast));
      else
        drop_oldest();
    }
  }

  void drop_oldest() {
    Idle* oldest = nullptr;
    for (auto& idle : idle_)
      if (!idle.blocks.empty() && (oldest == nullptr || idle.last_use < oldest->last_use)) oldest = &idle;
    Header* block = oldest->blocks.front();
    oldest->blocks.erase(oldest->blocks.begin());
    idle_bytes_ -= static_cast<std::int64_t>(bytes_in(block->size_class));
    std::free(block);
  }

  std::mutex mutex_;
  Arena arena_;
  std::array<Idle, kClasses> idle_;
  std::int64_t idle_bytes_ = 0;  // of the classes
  std::uint64_t clock_ = 0;
};

// Tensors may outlive everything else in the process, so neither is ever destroyed.
Counts& counts() {
  static auto* const all = new Counts;
  return *all;
}
Pool& pool() {
  static auto* const one = new Pool;
  return *one;
}

thread_local bool pool_is_on = false, is_scratch = false;

void release(void* data) {
  if (data == nullptr) return;
  auto* header = static_cast<Header*>(data) - 1;
  const std::int64_t live =
      hold(Holder::Tensors, header->is_counted ? -static_cast<std::int64_t>(header->bytes) : 0);
  if (header->from == From::System) {
    std::free(header);
    return;
  }
  const std::int64_t most = counts().most_ever();
  pool().give(header, most + std::max(most / 16, kSlack) - live);
}

// A block of the system's.
Header* taken(std::size_t bytes) {
  auto* header = static_cast<Header*>(std::aligned_alloc(kAlignment, bytes));
  TORCH_CHECK_WITH(OutOfMemoryError, header != nullptr, "out of memory: ", bytes,
                   " more bytes were asked for, ", held(Holder::Tensors), " are in use");
  return header;
}

class CountingAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, at::Device(at::kCPU)};
    Header* header = pool_is_on ? pool().take(bytes) : nullptr;
    if (header == nullptr) {
      const bool is_pooled = pool_is_on && bytes < kLarge;
      const std::uint32_t size_class = is_pooled ? class_of(bytes) : 0;
      header = taken(is_pooled ? sizeof(Header) + bytes_in(size_class) : whole(bytes));
      header->size_class = size_class;
      header->from = is_pooled ? From::Pool : From::System;
    }
    header->bytes = bytes;
    header->is_counted = !is_scratch;
    if (header->is_counted) counts().add(static_cast<std::int64_t>(bytes));
    void* data = header + 1;
    return {data, data, &release, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void install_allocator() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(new CountingAllocator, /*priority=*/100); });
}

MemoryCounts memory_counts() { return {held(Holder::Tensors), counts().peak.load(), pool().idle_bytes()}; }

void reset_peak() {
  Counts& all = counts();
  all.most.store(all.most_ever());
  all.peak.store(held(Holder::Tensors));
}

ThreadScope::ThreadScope(bool& flag) : flag_(flag), outer_(std::exchange(flag, true)) {}
ThreadScope::~ThreadScope() { flag_ = outer_; }
PoolScope::PoolScope() : ThreadScope(pool_is_on) {}
ScratchScope::ScratchScope() : ThreadScope(is_scratch) {}

void trim_pool() { pool().trim(); }

}  // namespace shoal::runtime
