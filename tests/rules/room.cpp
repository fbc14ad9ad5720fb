// SPDX-License-Identifier: Apache-2.0
#include "room.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "shoal/runtime/allocator.h"

namespace shoal {

static constexpr std::size_t kAround = 16384;  // bytes; the examples' tensors have a few hundred elements

static void give_back(void* data) { std::free(static_cast<char*>(data) - kAround); }

namespace {

class Roomy final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t all = (bytes + 63) / 64 * 64 + 2 * kAround;
    auto* begin = static_cast<char*>(std::aligned_alloc(64, all));
    if (begin == nullptr) throw std::bad_alloc();
    std::memset(begin, 0xff, all);
    return {begin + kAround, begin + kAround, give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

static constexpr std::uint8_t kPriority = 100;  // the runtime's

Room::Room() {
  runtime::install_allocator();  // which is done once
  static Roomy roomy;
  outside_ = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&roomy, kPriority);
}

Room::~Room() { c10::SetCPUAllocator(outside_, kPriority); }

}  // namespace shoal
