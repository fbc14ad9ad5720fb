// SPDX-License-Identifier: Apache-2.0
// The named grid of ranks.
//
//   replicate=2 tensor=3        rank 0 1 2     the innermost axis, written last, counts fastest
//                               rank 3 4 5
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::sharding {

struct Axis {        // one direction of the grid
  std::string name;  // "shard"
  int size = 1;      // ranks along it
  friend bool operator==(const Axis&, const Axis&) = default;
};

struct Mesh {
  std::vector<Axis> axes;  // outer to inner
  friend bool operator==(const Mesh&, const Mesh&) = default;

  int size() const;  // ranks
  // The number of the axis of that name in `axes`. Throws InvalidInput naming the axes there are.
  int axis(std::string_view name) const;
  int coordinate(int rank, int axis) const;  // of a rank along axis number `axis`, from 0
  // The ranks that are first or last along each axis. Parts differ by one unit at most, the larger ones
  // first: what a cut can come to in size on any rank it comes to on these.
  std::vector<int> corners() const;
  // The ranks that differ from `rank` along these axes alone, in order; `rank` is one of them.
  std::vector<int> group(int rank, const std::vector<int>& axes) const;
};

std::string to_text(const Mesh& mesh);  // "replicate=2 tensor=3"
// Throws InvalidInput saying what is wrong, at which word.
Mesh mesh_from_text(std::string_view text);

}  // namespace shoal::sharding
