// SPDX-License-Identifier: Apache-2.0
// Rows of one length, for all shards of a table, in regions that never move. A row's slot says where it is; a
// shard takes slots by the chunk, so that it asks seldom and its rows lie together. What belongs to a row but
// is seldom wanted with it lies in a column of its own, at the same slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace shoal::ps {

class Arena {
 public:
  static constexpr std::uint32_t kChunk = 64;  // slots

  explicit Arena(const std::vector<std::size_t>& strides);  // bytes of a row in each column
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // The first of kChunk new slots, all bytes 0. Any thread. Throws Infeasible where there is no memory.
  std::uint32_t take_chunk();

  std::byte* at(std::uint32_t slot, std::size_t column = 0) const {
    const Column& c = columns_[column];
    return c.regions[slot >> kRegionBits] + (slot & (kRegion - 1)) * c.stride;
  }
  std::int64_t bytes() const;  // of the slots that were taken; not while another thread takes some
  std::size_t stride(std::size_t column = 0) const { return columns_[column].stride; }

 private:
  static constexpr int kRegionBits = 17;
  static constexpr std::uint32_t kRegion = 1U << kRegionBits;

  struct Column {
    std::size_t stride = 0, region_bytes = 0;
    std::vector<std::byte*> regions;
  };

  std::mutex mutex_;  // of what take_chunk() changes; whoever reads a region was handed a slot of it
  std::vector<Column> columns_;
  std::uint64_t taken_ = 0;
};

// What one shard has of an arena.
class Slots {
 public:
  std::uint32_t take(Arena& arena);
  void give_back(std::uint32_t slot) { free_.push_back(slot); }

 private:
  std::uint32_t next_ = 0, left_ = 0;
  std::vector<std::uint32_t> free_;
};

}  // namespace shoal::ps
