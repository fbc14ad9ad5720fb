// SPDX-License-Identifier: Apache-2.0
// That the corners of a mesh stand for all its ranks, wherever sizes alone matter.
#include <doctest/doctest.h>

#include <random>
#include <set>

#include "shoal/base/error.h"
#include "shoal/sharding/layout.h"

using namespace shoal::sharding;

TEST_CASE("corners are the ranks that are first or last along each axis") {
  const Mesh mesh = {.axes = {{"replicate", 2}, {"shard", 1}, {"tensor", 3}}};
  CHECK(std::set<int>{0, 2, 3, 5} == [&] {
    const auto corners = mesh.corners();
    return std::set<int>(corners.begin(), corners.end());
  }());
}

TEST_CASE(
    "a layout fits all ranks if it fits the corners, and they have the smallest and the largest parts") {
  std::mt19937 random(5);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  int fitting = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    Mesh mesh;
    Layout layout;
    for (const char* name : {"a", "b", "c"}) {
      mesh.axes.push_back({name, 1 + below(5)});
      if (below(4) == 0)
        layout.placements.push_back(Replicate{});
      else
        layout.placements.push_back(Shard{.dim = below(2), .outer = 1 + below(3), .unit = 1 + below(3)});
    }
    const Shape shape = {below(40), below(40)};
    bool fits = true;
    std::set<Shape> all, at_corners;
    for (int rank = 0; rank < mesh.size() && fits; ++rank) try {
        all.insert(local_shape(mesh, layout, shape, rank));
      } catch (const shoal::Error&) {
        fits = false;
      }
    CHECK(misfit(mesh, layout, shape).empty() == fits);
    if (!fits) continue;
    ++fitting;
    for (const int rank : mesh.corners()) at_corners.insert(local_shape(mesh, layout, shape, rank));
    CHECK(at_corners == all);
  }
  CHECK(fitting > 500);
}
