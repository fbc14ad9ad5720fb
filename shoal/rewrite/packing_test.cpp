// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/packing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/local_graph_test.h"
#include "shoal/rewrite/place.h"

using namespace shoal;
using namespace shoal::rewrite;

namespace {

using sharding::Collective;
using Shapes = std::vector<sharding::Shape>;

// What rank `index` of three makes of tensors of these shapes; the first dim that `cut` names is cut.
std::string sent(Collective kind, int index, const Shapes& from, const Shapes& to, const sharding::Shard& cut,
                 std::int64_t whole, bool is_even, bool over = false) {
  ir::Graph graph;
  graph.form = ir::Form::Local;
  std::vector<Parcel> parcels;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto type = ir::contiguous(DType::Float32, from[i]);
    parcels.push_back({.from = graph.add_source(ir::Role::Input, std::string(1, char('a' + i)), type),
                       .to = ir::contiguous(DType::Float32, to[i]),
                       .shard = cut,
                       .whole = whole,
                       .is_small = ir::bytes_of(type) < kSmall,
                       .is_even = is_even});
    if (over)
      parcels.back().over = graph.add_source(ir::Role::Parameter, "w" + std::to_string(i), parcels[i].to);
  }
  const bool reduces = kind == Collective::AllReduce || kind == Collective::ReduceScatter;
  const auto made = send(graph,
                         {.kind = kind,
                          .axis = "shard",
                          .index = index,
                          .ranks = 3,
                          .combine = reduces ? std::optional(sharding::Combine::Sum) : std::nullopt,
                          .phase = ir::Phase::Update,
                          .module = ""},
                         parcels);
  for (std::size_t i = 0; i < made.size(); ++i) {
    CHECK(graph.at(made[i]).type == parcels[i].to);
    graph.add_result(ir::Role::Output, std::to_string(i), made[i]);
  }
  ir::verify(graph);
  std::string text = to_text(graph), nodes;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    if (line.find("shoal::") != std::string::npos) nodes += line.substr(0, line.find(" @")) + '\n';
  }
  return nodes;
}

}  // namespace

TEST_CASE("small tensors travel together, a large one alone") {
  const sharding::Shape large = {1 << 15};
  CHECK(sent(Collective::AllReduce, 0, {{2, 3}, {4}, large}, {{2, 3}, {4}, large}, {}, 0, true) ==
        R"(%3 : f32[32768] = shoal::all_reduce(self=%2, axis="shard", combine="sum")
%4 : f32[10] = shoal::pack(tensors=[%0, %1], copies=1)
%5 : f32[10] = shoal::all_reduce(self=%4, axis="shard", combine="sum")
%6 : f32[2, 3], %7 : f32[4] = shoal::unpack(self=%5)
)");
}

TEST_CASE("of small tensors whose parts are exchanged each is a message") {
  ir::Graph graph;
  graph.form = ir::Form::Local;
  std::vector<Parcel> parcels;
  for (const char* name : {"a", "b"})
    parcels.push_back(
        {.from = graph.add_source(ir::Role::Input, name, ir::contiguous(DType::Float32, {2, 4})),
         .to = ir::contiguous(DType::Float32, {4, 2}),
         .shard = {.dim = 1},
         .whole = 4,
         .before = sharding::Shard{.dim = 0},
         .whole_before = 4,
         .is_small = true});
  const auto made =
      send(graph, {.kind = Collective::AllToAll, .axis = "tensor", .index = 0, .ranks = 2}, parcels);
  CHECK(made.size() == 2);
  for (const auto value : made) {
    CHECK(graph.at(value).type == parcels[0].to);
    graph.add_result(ir::Role::Output, std::to_string(value.index), value);
  }
  ir::verify(graph);
  CHECK(std::ranges::count(graph.nodes, std::string("shoal::all_to_all"), &ir::Node::op) == 2);
}

TEST_CASE("rows of even parts are sent from where they are") {
  CHECK(sent(Collective::ReduceScatter, 1, {{6, 2}}, {{2, 2}}, {.dim = 0}, 6, true) ==
        "%1 : f32[2, 2] = shoal::reduce_scatter(self=%0, axis=\"shard\", combine=\"sum\")\n");
  CHECK(sent(Collective::AllGather, 1, {{2, 2}}, {{6, 2}}, {.dim = 0}, 6, true) ==
        "%1 : f32[6, 2] = shoal::all_gather(self=%0, axis=\"shard\")\n");
  CHECK(sent(Collective::AllGather, 1, {{2, 2}}, {{6, 2}}, {.dim = 0}, 6, true, true) ==
        "%2 : f32[6, 2] = shoal::all_gather_into(wholes=[%1], self=%0, axis=\"shard\")\n");
}

TEST_CASE("columns are packed by rank, and unpacked to where they belong") {
  CHECK(sent(Collective::ReduceScatter, 1, {{2, 6}}, {{2, 2}}, {.dim = 1}, 6, true) ==
        R"(%1 : f32[12] = shoal::pack_parts(tensors=[%0], dims=[1], outers=[1], units=[1], count=3)
%2 : f32[2, 2] = shoal::reduce_scatter(self=%1, axis="shard", combine="sum")
)");
  CHECK(sent(Collective::AllGather, 1, {{2, 2}}, {{2, 6}}, {.dim = 1}, 6, true) ==
        R"(%1 : f32[12] = shoal::all_gather(self=%0, axis="shard")
%2 : f32[2, 6] = shoal::unpack_parts(self=%1, dims=[1], outers=[1], units=[1], count=3)
)");
}

TEST_CASE("uneven parts travel without padding") {
  CHECK(sent(Collective::ReduceScatter, 2, {{5, 2}}, {{1, 2}}, {.dim = 0}, 5, false) ==
        R"(%1 : f32[6] = shoal::all_to_all(self=%0, axis="shard", sends=[4, 4, 2], receives=[2, 2, 2])
%2 : f32[1, 2] = shoal::combine(self=%1, count=3, combine="sum")
)");
  CHECK(sent(Collective::AllGather, 2, {{1, 2}}, {{5, 2}}, {.dim = 0}, 5, false) ==
        R"(%1 : f32[6] = shoal::pack(tensors=[%0], copies=3)
%2 : f32[5, 2] = shoal::all_to_all(self=%1, axis="shard", sends=[2, 2, 2], receives=[4, 4, 2])
)");
  CHECK(sent(Collective::AllGather, 0, {{2, 2}, {2, 1}}, {{5, 2}, {5, 1}}, {.dim = 0}, 5, false, true) ==
        R"(%4 : f32[18] = shoal::pack(tensors=[%0, %2], copies=3)
%5 : f32[15] = shoal::all_to_all(self=%4, axis="shard", sends=[6, 6, 6], receives=[6, 6, 3])
%6 : f32[5, 2], %7 : f32[5, 1] = shoal::unpack_into(wholes=[%1, %3], self=%5, dims=[0, 0], outers=[1, 1], units=[1, 1], count=3)
)");
}

TEST_CASE("all ranks have the same nodes, whatever their parts are like") {
  const auto mesh = sharding::mesh_from_text("shard=3 tensor=2");  // 7 = 4 + 3 columns; 4 of 3 ranks: uneven
  const auto layout = [](const char* text) { return sharding::layout_from_text(text); };
  const auto weight = ParameterPins{.kept = layout("[S(1), S(1)]"),
                                    .used = layout("[R, S(1)]"),
                                    .gradient = layout("[S(1), S(1)]"),
                                    .updated = layout("[S(1), S(1)]")};
  const Placed placed =
      place(ir::from_text(R"(graph captured
%0 = parameter "w" : f32[4, 7]
%1 = input "x" : f32[6, 4]
%2 : f32[6, 7] = aten::mm(self=%1, mat2=%0) @forward ""
return output "y" %2
)"),
            mesh, {.parameters = {{"w", weight}}, .inputs = {{"x", layout("[S(0), R]")}}, .outputs = {}});
  std::string first;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::string ops;
    for (const ir::Node& node : local_graph(placed, rank).nodes) ops += node.op + ' ';
    if (rank == 0) first = ops;
    CHECK(ops == first);
  }
  CHECK(first.find("shoal::all_to_all") != std::string::npos);
}
