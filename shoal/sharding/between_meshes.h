// SPDX-License-Identifier: Apache-2.0
// Redistribution from one mesh to another, of other ranks or other axes: to the next stage of a pipeline, to a
// job of another size, to files. What a rank has is a box of indices, what a rank wants is one, and what it is
// sent are the boxes in which they meet.
//
//   f32[6], two ranks S(0)       0: [0, 3)   1: [3, 6)
//   to three ranks S(0)          0: [0, 2)   1: [2, 4)   2: [4, 6)
//
//   0 keeps [0, 2)     0 -> 1 [2, 3)     1 keeps [3, 4)     1 -> 2 [4, 6)
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::sharding {

// A mesh whose rank r is rank ranks[r] of the job.
struct Submesh {
  Mesh mesh;
  std::vector<int> ranks;
  friend bool operator==(const Submesh&, const Submesh&) = default;
};

// What one rank of the job has of a value for another, or for itself: indices of the whole value.
struct Delivery {
  int from = 0;
  int to = 0;
  Box box;
  friend bool operator==(const Delivery&, const Delivery&) = default;

  std::int64_t num_elements() const;
};

// Every rank of `to` gets each element that it is to have exactly once: from itself if it has it, else from
// one of those that do, which take turns. Ordered by receiver, then by what is sent; the same on all ranks.
// Throws InvalidInput where a layout does not fit the shape or its mesh, or has summands: these are summed
// first, on their own mesh (redistribute.h).
std::vector<Delivery> deliveries(const Submesh& from, const Layout& has, const Submesh& to,
                                 const Layout& wants, const Shape& shape);

}  // namespace shoal::sharding
