// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/allocator.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace allocator_test {

using namespace shoal::runtime;

TEST_CASE("live and peak bytes are those that tensors asked for") {
  install_allocator();
  const auto before = memory_counts().live_bytes;
  reset_peak();
  {
    const auto a = at::empty({1000}, at::kFloat);
    CHECK(memory_counts().live_bytes == before + 4000);
    {
      const auto b = at::empty({3000}, at::kByte);
    }
    CHECK(memory_counts().live_bytes == before + 4000);
  }
  CHECK(memory_counts().live_bytes == before);
  CHECK(memory_counts().peak_bytes == before + 7000);
}

TEST_CASE("in a scope a freed block comes back at the next request of its size") {
  install_allocator();
  const PoolScope scope;
  const void* first = at::empty({12345}, at::kFloat).data_ptr();
  CHECK(memory_counts().idle_bytes >= 49380);
  const auto second = at::empty({12345}, at::kFloat);
  CHECK(second.data_ptr() == first);
  const auto third = at::empty({12345}, at::kFloat);
  CHECK(third.data_ptr() != first);
}

TEST_CASE("blocks are aligned to cache lines, whatever their size") {
  install_allocator();
  const PoolScope scope;
  for (const std::int64_t size : {1, 63, 64, 65, 511, 513, 1025, 100000}) {
    const auto tensor = at::empty({size}, at::kByte);
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64 == 0);
    tensor.fill_(1);
  }
  CHECK(at::empty({0}, at::kFloat).numel() == 0);
}

TEST_CASE("blocks may be freed after the scope and on another thread") {
  install_allocator();
  const auto before = memory_counts().live_bytes;
  at::Tensor tensor;
  {
    const PoolScope scope;
    tensor = at::empty({1 << 20}, at::kFloat);
  }
  std::thread([moved = std::move(tensor)]() mutable { moved.reset(); }).join();
  CHECK(memory_counts().live_bytes == before);
}

TEST_CASE("large tensors of other sizes take the memory that a large one has left") {
  install_allocator();
  trim_pool();
  const PoolScope scope;
  constexpr std::int64_t kMebibyte = 1 << 20;
  reset_peak();
  auto whole = at::empty({24 * kMebibyte}, at::kByte);
  whole.reset();
  const auto idle = memory_counts().idle_bytes;
  CHECK(idle >= 24 * kMebibyte);
  const auto first = at::empty({15 * kMebibyte}, at::kByte), second = at::empty({8 * kMebibyte}, at::kByte);
  CHECK(memory_counts().idle_bytes <= idle - 23 * kMebibyte);
}

TEST_CASE("live and idle together are no more than what was once live, and a little") {
  install_allocator();
  trim_pool();
  CHECK(memory_counts().idle_bytes == 0);
  const PoolScope scope;
  reset_peak();
  std::int64_t most = 0;  // of all that this process has had
  for (const std::int64_t kibibytes : {1, 100, 300, 5000, 70000}) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 9; ++i) tensors.push_back(at::empty({kibibytes << 10}, at::kByte));
    most = std::max(most, memory_counts().peak_bytes);
    while (!tensors.empty()) {
      tensors.pop_back();
      const MemoryCounts counts = memory_counts();
      CHECK(counts.live_bytes + counts.idle_bytes <= most + std::max<std::int64_t>(most / 16, 16 << 20));
    }
  }
  CHECK(memory_counts().idle_bytes > std::int64_t{600} << 20);
  trim_pool();
  CHECK(memory_counts().idle_bytes == 0);
}

TEST_CASE("a request that no machine can meet is an error, not the end") {
  install_allocator();
  CHECK_THROWS_AS(at::empty({std::int64_t{1} << 50}, at::kByte), c10::OutOfMemoryError);
}

}  // namespace allocator_test
