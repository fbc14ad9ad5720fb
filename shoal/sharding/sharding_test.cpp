// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"
#include "shoal/sharding/redistribute.h"
#include "shoal/sharding/rules.h"

using namespace shoal;
using namespace shoal::sharding;

using Index = std::vector<std::int64_t>;
using Local = std::map<Index, double>;  // the elements that a rank holds, by their index in the value

static std::vector<Index> indices_of(const Box& box) {
  std::vector<Index> all = {{}};
  for (const auto& ranges : box.dims) {
    std::vector<Index> longer;
    for (const Index& index : all)
      for (const Range& range : ranges)
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          longer.push_back(index);
          longer.back().push_back(i);
        }
    all = std::move(longer);
  }
  return all;
}

static double combine(Combine how, double a, double b) {
  return how == Combine::Sum ? a + b : how == Combine::Min ? std::min(a, b) : std::max(a, b);
}

// What each rank holds of a value, by a layout whose partials are all of one kind.
static std::vector<Local> distribute(const Mesh& mesh, const Layout& layout, const Local& value,
                                     const Shape& shape, std::mt19937& random) {
  std::vector<int> partial_axes;
  Combine how = Combine::Sum;
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (const auto* partial = std::get_if<Partial>(&layout.placements[axis])) {
      partial_axes.push_back(static_cast<int>(axis));
      how = partial->combine;
    }
  std::vector<Local> ranks(static_cast<std::size_t>(mesh.size()));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int> group = mesh.group(rank, partial_axes);
    if (group.front() != rank) continue;
    for (const Index& index : indices_of(box_of(mesh, layout, shape, rank))) {
      double rest = value.at(index);
      for (const int member : group) {
        const bool last = member == group.back();
        const auto noise = static_cast<double>(random() % 8);
        const double part = how == Combine::Sum   ? (last ? rest : noise)
                            : last                ? value.at(index)
                            : how == Combine::Min ? value.at(index) + noise
                                                  : value.at(index) - noise;
        if (how == Combine::Sum) rest -= part;
        ranks[static_cast<std::size_t>(member)][index] = part;
      }
    }
  }
  return ranks;
}

// One step as ranks do it: each sees nothing but what its group along the step's axis holds.
static std::vector<Local> act(const Mesh& mesh, const Step& step, const Layout& after, const Shape& shape,
                              const std::vector<Local>& before) {
  std::vector<Local> ranks(before.size());
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int> group = mesh.group(rank, {step.axis});
    const auto& own = before[static_cast<std::size_t>(rank)];
    for (const Index& index : indices_of(box_of(mesh, after, shape, rank))) {
      std::optional<double> result;
      switch (step.change) {
        case Change::Slice: result = own.at(index); break;
        case Change::KeepOnFirst:
          result = std::get<Partial>(step.to).combine != Combine::Sum || mesh.coordinate(rank, step.axis) == 0
                       ? own.at(index)
                       : 0;
          break;
        case Change::AllGather:
        case Change::AllToAll:
          for (const int member : group)
            if (const auto& held = before[static_cast<std::size_t>(member)]; held.contains(index)) {
              REQUIRE_FALSE(result);  // one holds it, and one only
              result = held.at(index);
            }
          break;
        case Change::AllReduce:
        case Change::ReduceScatter:
          for (const int member : group) {
            const double part = before[static_cast<std::size_t>(member)].at(index);
            result = result ? combine(std::get<Partial>(step.from).combine, *result, part) : part;
          }
      }
      REQUIRE(result);
      ranks[static_cast<std::size_t>(rank)][index] = *result;
    }
  }
  return ranks;
}

static std::string steps(std::string_view mesh, const Shape& shape, std::string_view from,
                         std::string_view to) {
  const Mesh grid = mesh_from_text(mesh);
  return to_text(grid, redistribution(grid, shape, 4, layout_from_text(from), layout_from_text(to)));
}

TEST_CASE("a mesh counts its innermost axis fastest") {
  const Mesh mesh = mesh_from_text("replicate=2 tensor=3");
  CHECK(mesh.size() == 6);
  CHECK(mesh.coordinate(4, mesh.axis("replicate")) == 1);
  CHECK(mesh.coordinate(4, mesh.axis("tensor")) == 1);
  CHECK(mesh.group(4, {0}) == std::vector<int>{1, 4});
  CHECK(mesh.group(4, {1}) == std::vector<int>{3, 4, 5});
  CHECK(mesh.group(4, {0, 1}) == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(mesh_from_text(to_text(mesh)) == mesh);
}

TEST_CASE("a mesh says what is wrong with its text") {
  CHECK(error_of([] { mesh_from_text("data"); }) ==
        "mesh: 'data' is not NAME=SIZE, as in 'replicate=2 tensor=3'");
  CHECK(error_of([] { mesh_from_text("data=0"); }) ==
        "mesh: the size in 'data=0' is not a whole number from 1");
  CHECK(error_of([] { mesh_from_text("data=2 data=2"); }) == "mesh: axis 'data' is there twice");
  CHECK(error_of([] { mesh_from_text("a=99999 b=99999"); }) == "mesh: 'a=99999 b=99999' has too many ranks");
  CHECK(error_of([] { mesh_from_text("a=2").axis("b"); }) == "mesh: no axis 'b' in 'a=2'");
}

TEST_CASE("the text of a layout round-trips") {
  for (const char* text :
       {"[]", "[R, S(0)]", "[S(1, outer=3, unit=64), P(sum)]", "[P(min), P(max), S(2, unit=8)]"})
    CHECK(to_text(layout_from_text(text)) == text);
  CHECK(error_of([] { layout_from_text("[R, Q]"); }) ==
        "layout: '[R, Q]': wanted R, S(dim) or P(sum) at 'Q]', as in '[R, S(1, outer=3, unit=64), P(sum)]'");
}

TEST_CASE("parts differ by one unit at most, the larger ones first, and may be empty") {
  const Mesh mesh = mesh_from_text("data=4");
  const auto sizes = [&](const char* layout, std::int64_t size) {
    std::vector<std::int64_t> all;
    for (int rank = 0; rank < 4; ++rank)
      all.push_back(local_shape(mesh, layout_from_text(layout), {size}, rank)[0]);
    return all;
  };
  CHECK(sizes("[S(0)]", 10) == std::vector<std::int64_t>{3, 3, 2, 2});
  CHECK(sizes("[S(0)]", 3) == std::vector<std::int64_t>{1, 1, 1, 0});
  CHECK(sizes("[S(0)]", 0) == std::vector<std::int64_t>{0, 0, 0, 0});
  CHECK(sizes("[S(0, unit=4)]", 24) == std::vector<std::int64_t>{8, 8, 4, 4});
}

TEST_CASE("a fused projection is cut by heads") {
  // queries 0-7, keys 8-15, values 16-23; two heads of four
  const Box box = box_of(mesh_from_text("tensor=2"), layout_from_text("[S(0, outer=3, unit=4)]"), {24}, 1);
  CHECK(box.dims[0] == std::vector<Range>{{4, 8}, {12, 16}, {20, 24}});
  CHECK(box.shape() == Shape{12});
}

TEST_CASE("the innermost axis cuts first") {
  const Mesh mesh = mesh_from_text("shard=2 tensor=2");
  std::vector<std::vector<Range>> held;
  for (int rank = 0; rank < 4; ++rank)
    held.push_back(box_of(mesh, layout_from_text("[S(0), S(0)]"), {6}, rank).dims[0]);
  CHECK(held == std::vector<std::vector<Range>>{{{0, 2}}, {{3, 5}}, {{2, 3}}, {{5, 6}}});
}

TEST_CASE("a layout that does not fit says why") {
  const Mesh mesh = mesh_from_text("data=2");
  CHECK(error_of([&] { box_of(mesh, layout_from_text("[S(1)]"), {4}, 0); }) ==
        "layout [S(1)]: no dim 1 in a value of 1 dims");
  CHECK(error_of([&] { box_of(mesh, layout_from_text("[S(0, outer=3)]"), {4}, 0); }) ==
        "layout [S(0, outer=3)]: dim 0 is 4 where axis data cuts it, not a multiple of outer x unit = 3");
  CHECK(error_of([&] { box_of(mesh, layout_from_text("[R, R]"), {4}, 0); }) ==
        "layout [R, R]: it has 2 placements, and mesh 'data=2' 1 axes");
  CHECK(error_of([&] { box_of(mesh_from_text("a=2 b=2"), layout_from_text("[P(sum), P(max)]"), {4}, 0); }) ==
        "layout [P(sum), P(max)]: P(sum) and P(max) do not go together");
}

TEST_CASE("a redistribution is the collectives that people expect") {
  CHECK(steps("data=4", {8, 2}, "[P(sum)]", "[R]") == "all_reduce data P(sum) -> R 96 bytes\n");
  CHECK(steps("data=4", {8, 2}, "[P(sum)]", "[S(0)]") == "reduce_scatter data P(sum) -> S(0) 48 bytes\n");
  CHECK(steps("data=4", {8, 2}, "[S(0)]", "[R]") == "all_gather data S(0) -> R 48 bytes\n");
  CHECK(steps("data=4", {8, 4}, "[S(0)]", "[S(1)]") == "all_to_all data S(0) -> S(1) 24 bytes\n");
  CHECK(steps("data=4", {8, 2}, "[R]", "[S(0)]") == "slice data R -> S(0) 0 bytes\n");
  CHECK(steps("data=4", {8, 2}, "[R]", "[P(sum)]") == "keep_on_first data R -> P(sum) 0 bytes\n");
  CHECK(steps("data=4", {8, 2}, "[S(0)]", "[S(0)]").empty());
  // ZeRO-3 over tensor parallelism: gathering over `shard` gives back what the tensor axis cut.
  CHECK(steps("shard=2 tensor=2", {8}, "[S(0), S(0)]", "[R, S(0)]") ==
        "all_gather shard S(0) -> R 8 bytes\n");
  // What the outer axis cut last is joined first.
  CHECK(steps("shard=2 tensor=2", {8}, "[S(0), S(0)]", "[S(0), R]") ==
        "all_gather shard S(0) -> R 8 bytes\n"
        "all_gather tensor S(0) -> R 16 bytes\n"
        "slice shard R -> S(0) 0 bytes\n");
}

TEST_CASE("one kind of partial does not become another") {
  CHECK(error_of([] { steps("data=2", {4}, "[S(0)]", "[P(sum)]"); }) == "");
  CHECK(steps("data=2", {4}, "[P(max)]", "[P(sum)]") ==
        "all_reduce data P(max) -> R 16 bytes\n"
        "keep_on_first data R -> P(sum) 0 bytes\n");
}

static Layout random_layout(const Mesh& mesh, const Shape& shape, std::mt19937& random) {
  const auto combine = static_cast<Combine>(random() % 3);
  while (true) {
    Layout layout;
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      const auto kind = random() % 5;
      if (kind == 0)
        layout.placements.push_back(Replicate{});
      else if (kind == 1)
        layout.placements.push_back(Partial{combine});
      else
        layout.placements.push_back(Shard{.dim = static_cast<int>(random() % shape.size()),
                                          .outer = random() % 3 == 0 ? 3 : 1,
                                          .unit = random() % 3 == 0 ? 2 : 1});
    }
    if (misfit(mesh, layout, shape).empty()) return layout;
  }
}

TEST_CASE("any layout becomes any other, each rank seeing its groups alone") {
  int num_steps = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    Mesh mesh;
    for (const char* name : {"replicate", "shard", "tensor"})
      if (random() % 4 != 0) mesh.axes.push_back({name, static_cast<int>(1 + random() % 3)});
    Shape shape;
    for (auto dims = 1 + random() % 2; dims > 0; --dims)
      shape.push_back(std::array{6, 7, 12, 18, 0, 1}[random() % 6]);
    const Layout from = random_layout(mesh, shape, random), to = random_layout(mesh, shape, random);
    CAPTURE(seed);
    CAPTURE(to_text(mesh));
    CAPTURE(to_text(from));
    CAPTURE(to_text(to));

    Local value;
    for (const Index& index : indices_of(box_of(mesh, replicated(mesh), shape, 0)))
      value[index] = static_cast<double>(random() % 1000);
    Layout now = from;
    std::vector<Local> ranks = distribute(mesh, from, value, shape, random);
    for (const Step& step : redistribution(mesh, shape, 8, from, to)) {
      REQUIRE(now.placements[static_cast<std::size_t>(step.axis)] == step.from);
      now.placements[static_cast<std::size_t>(step.axis)] = step.to;
      ranks = act(mesh, step, now, shape, ranks);
      ++num_steps;
    }
    REQUIRE(now == to);
    // What `to` leaves partial is combined to be compared.
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
      if (const Placement partial = now.placements[axis]; std::holds_alternative<Partial>(partial)) {
        now.placements[axis] = Replicate{};
        ranks =
            act(mesh, {Change::AllReduce, static_cast<int>(axis), partial, Replicate{}}, now, shape, ranks);
      }
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const auto& held = ranks[static_cast<std::size_t>(rank)];
      const auto wanted = indices_of(box_of(mesh, now, shape, rank));
      REQUIRE(held.size() == wanted.size());
      for (const Index& index : wanted) REQUIRE(held.at(index) == value.at(index));
    }
  }
  CHECK(num_steps > 1000);
}

static std::vector<std::string> strategies_of(const std::string& text) {
  const ir::Graph graph = ir::from_text("graph captured\n" + text + "return\n");
  std::vector<std::string> all;
  for (const Strategy& strategy : strategies(graph, graph.nodes.back())) all.push_back(to_text(strategy));
  return all;
}

TEST_CASE("a matrix product is cut along rows, columns or what is summed, and goes through sums") {
  CHECK(strategies_of(
            "%0 = input \"a\" : f32[2, 3]\n%1 = input \"b\" : f32[3, 4]\n%2 = input \"c\" : f32[4]\n"
            "%3 : f32[2, 4] = aten::addmm(self=%2, mat1=%0, mat2=%1, beta=1, alpha=1) @forward \"\"\n") ==
        std::vector<std::string>{"P(sum), S(1), S(0) -> P(sum)", "R, S(0), R -> S(0)",
                                 "S(0), R, S(1) -> S(1)", "P(sum), P(sum), R -> P(sum)",
                                 "P(sum), R, P(sum) -> P(sum)"});
}

TEST_CASE("a conversion goes through sums where it rounds nothing") {
  const auto of = [](const std::string& from, const std::string& to) {
    return strategies_of("%0 = input \"x\" : " + from + "[4]\n%1 : " + to +
                         "[4] = aten::_to_copy(self=%0, dtype=" + to + ") @forward\n");
  };
  const std::string through = "P(sum) -> P(sum)";
  const auto has = [&](const std::vector<std::string>& all) {
    return std::ranges::find(all, through) != all.end();
  };
  CHECK(has(of("bf16", "f32")));
  CHECK(has(of("f32", "f64")));
  CHECK(has(of("f32", "f32")));
  CHECK(has(of("i32", "i64")));
  CHECK_FALSE(has(of("f32", "bf16")));
  CHECK_FALSE(has(of("i64", "i32")));
  CHECK_FALSE(has(of("f32", "i64")));
  CHECK_FALSE(has(of("i64", "f32")));
  CHECK_FALSE(has(of("bool", "bool")));
}

TEST_CASE("an op without a rule has no strategies") {
  CHECK(strategies_of("%0 = input \"a\" : f32[2]\n%1 : f32[2] = aten::sort_of(self=%0) @forward \"\"\n")
            .empty());
}

TEST_CASE("no way over a layout between is cheaper than the one that is chosen") {
  const Mesh mesh = {.axes = {{"a", 2}, {"b", 3}, {"c", 2}}};
  const Shape shape = {12, 6};
  std::mt19937_64 random(5);
  const auto drawn = [&](bool may_be_partial) {
    Layout layout;
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      const auto kind = random() % (may_be_partial ? 4 : 3);
      if (kind < 2)
        layout.placements.emplace_back(Shard{.dim = static_cast<int>(kind)});
      else if (kind == 2)
        layout.placements.emplace_back(Replicate{});
      else
        layout.placements.emplace_back(Partial{});
    }
    return layout;
  };
  const auto cost = [&](const Layout& from, const Layout& to) {
    std::int64_t bytes = 0;
    for (const Step& step : redistribution(mesh, shape, 4, from, to)) bytes += step.bytes;
    return bytes;
  };
  for (int i = 0; i < 2000; ++i) {
    const Layout from = drawn(true), to = drawn(false);
    if (!misfit(mesh, from, shape).empty() || !misfit(mesh, to, shape).empty()) continue;
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
      for (const Placement& placement : {Placement(Replicate{}), to.placements[axis]}) {
        Layout between = from;
        between.placements[axis] = placement;
        if (!misfit(mesh, between, shape).empty()) continue;
        CAPTURE(to_text(from));
        CAPTURE(to_text(between));
        CAPTURE(to_text(to));
        CHECK(cost(from, to) <= cost(from, between) + cost(between, to));
      }
  }
}

TEST_CASE("parts by weights") {
  const Mesh mesh = mesh_from_text("pipeline=3");
  const auto sizes = [&](const std::string& layout, std::int64_t size) {
    std::vector<std::int64_t> found;
    for (int rank = 0; rank < 3; ++rank)
      found.push_back(local_shape(mesh, layout_from_text(layout), {size}, rank)[0]);
    return found;
  };
  CHECK(sizes("[S(0, weights=0:1:0)]", 7) == std::vector<std::int64_t>{0, 7, 0});
  CHECK(sizes("[S(0, weights=1:2:4)]", 7) == std::vector<std::int64_t>{1, 2, 4});
  CHECK(sizes("[S(0, weights=1:1:2)]", 6) == std::vector<std::int64_t>{1, 2, 3});
  CHECK(to_text(layout_from_text("[S(0, unit=2, weights=1:2:4)]")) == "[S(0, unit=2, weights=1:2:4)]");
  CHECK(misfit(mesh, layout_from_text("[S(0, weights=1:2)]"), {6}) ==
        "S(0, weights=1:2) has 2 weights, and axis pipeline 3 ranks");
  CHECK(
      redistribution(mesh, {7}, 4, layout_from_text("[S(0, weights=0:1:0)]"), replicated(mesh)).at(0).bytes ==
      2 * 7 * 4);
  CHECK_THROWS_AS(layout_from_text("[S(0, weights=0:0)]"), Error);
}

TEST_CASE("a view keeps what is cut, if the parts of the view are views of the parts") {
  using S = std::optional<Shard>;
  CHECK(through_view({24}, {3, 2, 4}, {.dim = 0, .outer = 3, .unit = 4}) == S(Shard{.dim = 1}));
  CHECK(through_view({3, 2, 4}, {24}, {.dim = 1}) == S(Shard{.dim = 0, .outer = 3, .unit = 4}));
  CHECK(through_view({8, 5, 6}, {40, 6}, {.dim = 0}) == S(Shard{.dim = 0, .unit = 5}));
  CHECK(through_view({8, 5, 6}, {40, 6}, {.dim = 1}) == S(Shard{.dim = 0, .outer = 8}));
  CHECK(through_view({6, 4}, {24}, {.dim = 1, .outer = 2}) == S(Shard{.dim = 0, .outer = 12}));
  CHECK(through_view({24}, {6, 4}, {.dim = 0}) == std::nullopt);
  CHECK(through_view({6, 1}, {6}, {.dim = 0}) == S(Shard{.dim = 0}));
}
