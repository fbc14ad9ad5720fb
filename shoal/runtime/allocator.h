// SPDX-License-Identifier: Apache-2.0
// The processor's memory for tensors: counted always, recycled inside the executor.
//
// A training step asks for the same blocks again and again. The system's allocator gives large ones back to
// the kernel at once, and every page is faulted in and cleared anew; here a freed block waits for the next of
// its size.
#pragma once

#include <cstdint>

namespace shoal::runtime {

struct MemoryCounts {
  std::int64_t live_bytes = 0;  // asked for and not yet freed, by anyone in the process
  std::int64_t peak_bytes = 0;  // the largest live_bytes since reset_peak()
  std::int64_t idle_bytes = 0;  // held by the pool for reuse
  friend bool operator==(const MemoryCounts&, const MemoryCounts&) = default;
};

// Makes Shoal's allocator the one that ATen's CPU tensors come from, from here to the end of the process.
// Blocks made before are freed as they were made. Any thread, any number of times; the executor calls it.
void install_allocator();

// Zero before install_allocator().
MemoryCounts memory_counts();
void reset_peak();

class ThreadScope {  // sets a flag of this thread, and sets it back
 public:
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 protected:
  explicit ThreadScope(bool& flag);
  ~ThreadScope();

 private:
  bool& flag_;
  bool outer_;
};

// While one lives, this thread takes blocks from the pool. What is freed later, elsewhere or after the scope,
// is safe.
class PoolScope : ThreadScope {
 public:
  PoolScope();
};

// While one lives, what this thread takes is not counted: what a kernel of oneDNN's has inside, which that library
// takes from ATen, where MKL takes it from the system.
class ScratchScope : ThreadScope {
 public:
  ScratchScope();
};

// Gives what the pool holds back to the system.
void trim_pool();

}  // namespace shoal::runtime
