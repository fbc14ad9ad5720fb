// SPDX-License-Identifier: Apache-2.0
// A rank's own shared memory, in whole pages: what `allocate` hands out.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/free_ranges.h"
#include "shoal/comm/communicator.h"
#include "shoal/comm/shm/segment.h"
#include "shoal/comm/shm/under_way.h"

namespace shoal::comm::shm {

// Where memory of a rank lies, for its peers: put into shared memory as it is.
struct Place {
  SegmentId segment;
  std::int64_t offset = 0;
};

// Segments are large and mostly empty: address space, of which only what is allocated takes memory. Another
// is added when none has room. They stay until the heap ends, so that a peer's mapping is never of something
// else. Held by the communicators of a rank (subgroups too) and by the memories that it gave out. Any thread.
class Heap {
 public:
  Heap(std::string name, std::shared_ptr<Mappings> mappings);

  struct Block {
    std::size_t segment = 0;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;  // whole pages
  };
  Block allocate(std::int64_t bytes);  // zeros
  void free(const Block& block) noexcept;
  std::byte* data(const Block& block);
  // Where these bytes are, if they are all in one segment of this heap.
  std::optional<Place> find(const void* data, std::int64_t bytes);

  const std::shared_ptr<Mappings>& mappings() const { return mappings_; }
  const std::string& name() const { return name_; }
  UnderWay& under_way() { return under_way_; }

 private:
  struct Region {
    std::unique_ptr<Segment> segment;
    FreeRanges free;
  };

  const std::string name_;
  const std::shared_ptr<Mappings> mappings_;
  std::mutex mutex_;  // guards regions_
  std::vector<Region> regions_;
  UnderWay under_way_;
};

std::unique_ptr<Memory> memory_from(std::shared_ptr<Heap> heap, std::int64_t bytes);

}  // namespace shoal::comm::shm
