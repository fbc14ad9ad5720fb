// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/between_meshes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::sharding;
using Index = std::vector<std::int64_t>;

static Submesh submesh(const std::string& mesh, std::vector<int> ranks) {
  return {mesh_from_text(mesh), std::move(ranks)};
}

static std::string text_of(const std::vector<Delivery>& all) {
  std::string text;
  for (const Delivery& each : all) {
    text += concat(each.from, "->", each.to);
    for (const auto& ranges : each.box.dims) {
      text += ' ';
      for (const Range& range : ranges) text += concat('[', range.begin, ',', range.end, ')');
    }
    text += '\n';
  }
  return text;
}

static void for_each_index(const Box& box, const std::function<void(const Index&)>& act) {
  Index index(box.dims.size());
  const std::function<void(std::size_t)> over = [&](std::size_t dim) {
    if (dim == index.size()) return act(index);
    for (const Range& range : box.dims[dim])
      for (index[dim] = range.begin; index[dim] < range.end; ++index[dim]) over(dim + 1);
  };
  over(0);
}

TEST_CASE("two ranks' halves become three ranks' thirds") {
  CHECK(text_of(deliveries(submesh("a=2", {0, 1}), layout_from_text("[S(0)]"), submesh("b=3", {0, 1, 2}),
                           layout_from_text("[S(0)]"), {6})) ==
        "0->0 [0,2)\n0->1 [2,3)\n1->1 [3,4)\n1->2 [4,6)\n");
}

TEST_CASE("those that have the same take turns, and nobody is sent what it has") {
  CHECK(text_of(deliveries(submesh("a=2", {0, 1}), layout_from_text("[R]"), submesh("b=4", {1, 2, 3, 4}),
                           layout_from_text("[R]"), {2})) ==
        "1->1 [0,2)\n0->2 [0,2)\n1->3 [0,2)\n0->4 [0,2)\n");
}

TEST_CASE("blocks of a dim meet one by one") {
  // Queries, keys and values, each by heads, from two ranks to four.
  CHECK(text_of(deliveries(submesh("a=2", {0, 1}), layout_from_text("[S(0, outer=3)]"),
                           submesh("b=4", {2, 3, 4, 5}), layout_from_text("[S(0, outer=3)]"), {12})) ==
        "0->2 [0,1)[4,5)[8,9)\n0->3 [1,2)[5,6)[9,10)\n1->4 [2,3)[6,7)[10,11)\n1->5 [3,4)[7,8)[11,12)\n");
}

TEST_CASE("what does not fit, or would have to be summed, is refused") {
  const auto two = submesh("a=2", {0, 1});
  const auto rows = layout_from_text("[S(0)]");
  CHECK(error_of([&] {
          deliveries(two, layout_from_text("[P(sum)]"), two, rows, {4});
        }).find("sum them up first") != std::string::npos);
  CHECK(error_of([&] {
          deliveries(two, rows, two, layout_from_text("[S(1)]"), {4});
        }).find("cannot be [S(1)]") != std::string::npos);
  CHECK(error_of([&] { deliveries(submesh("a=2", {0}), rows, two, rows, {4}); }).find("1 are named") !=
        std::string::npos);
}

TEST_CASE("from any mesh to any other, each rank gets each element once, from one that has it") {
  const char* const kMeshes[] = {"a=1", "a=2", "a=3", "a=2 b=2", "a=3 b=2", "a=2 b=1 c=3", "a=2 b=2 c=2"};
  std::mt19937_64 random(3);
  const auto pick = [&](std::size_t limit) { return static_cast<int>(random() % limit); };
  int compared = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    const Shape shape = {1 + pick(12), 1 + pick(7)};
    const auto drawn = [&](Submesh& at, Layout& layout) {
      at.mesh = mesh_from_text(kMeshes[pick(std::size(kMeshes))]);
      std::vector<int> ranks(10);
      std::iota(ranks.begin(), ranks.end(), 0);
      std::ranges::shuffle(ranks, random);
      at.ranks.assign(ranks.begin(), ranks.begin() + at.mesh.size());
      for (std::size_t axis = 0; axis < at.mesh.axes.size(); ++axis) {
        if (pick(3) == 0)
          layout.placements.emplace_back(Replicate{});
        else
          layout.placements.emplace_back(Shard{.dim = pick(2), .outer = 1 + pick(2)});
      }
    };
    Submesh from, to;
    Layout has, wants;
    drawn(from, has);
    drawn(to, wants);
    if (!misfit(from.mesh, has, shape).empty() || !misfit(to.mesh, wants, shape).empty()) continue;
    ++compared;
    std::map<int, std::set<Index>> held, got;
    for (int rank = 0; rank < from.mesh.size(); ++rank)
      for_each_index(box_of(from.mesh, has, shape, rank), [&](const Index& index) {
        held[from.ranks[static_cast<std::size_t>(rank)]].insert(index);
      });
    for (const Delivery& each : deliveries(from, has, to, wants, shape)) {
      std::int64_t elements = 0;
      for_each_index(each.box, [&](const Index& index) {
        CHECK(held[each.from].contains(index));
        CHECK(got[each.to].insert(index).second);
        if (held[each.to].contains(index)) CHECK(each.from == each.to);
        ++elements;
      });
      CHECK(elements == each.num_elements());
      CHECK(elements > 0);
    }
    for (int rank = 0; rank < to.mesh.size(); ++rank) {
      std::set<Index> wanted;
      for_each_index(box_of(to.mesh, wants, shape, rank), [&](const Index& index) { wanted.insert(index); });
      CHECK(got[to.ranks[static_cast<std::size_t>(rank)]] == wanted);
    }
  }
  CHECK(compared > 400);
}
