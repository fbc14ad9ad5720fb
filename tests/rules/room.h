// SPDX-License-Identifier: Apache-2.0
// Room around every tensor, for kernels that trust their caller: what they read beyond its ends is NaN, or -1, and
// what they write there harms nothing.
#pragma once

#include <c10/core/Allocator.h>

namespace shoal {

class Room {
 public:
  Room();  // for all tensors of the processor that are made while it lives
  ~Room();
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

 private:
  c10::Allocator* outside_;
};

}  // namespace shoal
