// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/shm/heap.h"

#include <algorithm>

#include "shoal/base/error.h"
#include "shoal/base/held.h"

namespace shoal::comm::shm {

static constexpr std::int64_t kPage = 4096;
static constexpr std::int64_t kSegmentBytes = std::int64_t{1} << 30;

Heap::Heap(std::string name, std::shared_ptr<Mappings> mappings)
    : name_(std::move(name)), mappings_(std::move(mappings)) {}

Heap::Block Heap::allocate(std::int64_t bytes) {
  const std::int64_t wanted = (std::max<std::int64_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  check_available(wanted);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0;; ++i) {
    if (i == regions_.size()) {
      const std::int64_t size = std::max(kSegmentBytes, wanted);
      auto segment = std::make_unique<Segment>(name_, size, *mappings_);
      regions_.push_back({std::move(segment), {}});
      regions_.back().free.give(0, size);
    }
    Region& region = regions_[i];
    const auto offset = region.free.take(wanted);
    if (!offset) continue;
    try {
      region.segment->commit(*offset, wanted);
    } catch (const Error&) {
      region.free.give(*offset, wanted);
      throw;
    }
    hold(Holder::Communicators, wanted);
    return {i, *offset, wanted};
  }
}

void Heap::free(const Block& block) noexcept {
  const std::lock_guard lock(mutex_);
  Region& region = regions_[block.segment];
  region.segment->discard(block.offset, block.bytes);
  hold(Holder::Communicators, -block.bytes);
  region.free.give(block.offset, block.bytes);
}

std::byte* Heap::data(const Block& block) {
  const std::lock_guard lock(mutex_);
  return regions_[block.segment].segment->data() + block.offset;
}

std::optional<Place> Heap::find(const void* data, std::int64_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  for (const Region& region : regions_) {
    const std::byte* base = region.segment->data();
    if (begin >= base && begin + bytes <= base + region.segment->id().bytes)
      return Place{region.segment->id(), begin - base};
  }
  return std::nullopt;
}

namespace {
class HeapMemory : public Memory {
 public:
  HeapMemory(std::shared_ptr<Heap> heap, std::int64_t bytes)
      : heap_(std::move(heap)), bytes_(bytes), block_(heap_->allocate(bytes)), data_(heap_->data(block_)) {}
  HeapMemory(const HeapMemory&) = delete;
  HeapMemory& operator=(const HeapMemory&) = delete;
  ~HeapMemory() override { heap_->free(block_); }
  void* data() override { return data_; }
  std::int64_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<Heap> heap_;
  std::int64_t bytes_;
  Heap::Block block_;
  std::byte* data_;
};
}  // namespace

std::unique_ptr<Memory> memory_from(std::shared_ptr<Heap> heap, std::int64_t bytes) {
  SHOAL_CHECK(bytes >= 0, InvalidInput, "comm: allocate of ", bytes, " bytes");
  return std::make_unique<HeapMemory>(std::move(heap), bytes);
}

}  // namespace shoal::comm::shm
