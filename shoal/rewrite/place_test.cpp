// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/place.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/local_graph_test.h"

using namespace shoal;
using namespace shoal::rewrite;
using sharding::layout_from_text;

static Pins pins(const std::map<std::string, std::string>& inputs) {
  Pins pins;
  for (const auto& [name, layout] : inputs) pins.inputs.emplace(name, layout_from_text(layout));
  return pins;
}

static std::string out_of(const Placed& placed, std::size_t node) {
  return to_text(placed.nodes[node].out[0]);
}

// A step of one matrix: its gradient is summed over the batch.
static const char* const kStep = R"(graph captured
%0 = parameter "w" : f32[4, 4]
%1 = input "x" : f32[8, 4]
%2 : f32[8, 4] = aten::mm(self=%1, mat2=%0) @forward ""
%3 : f32[4, 8]{1,4} = aten::t(self=%1) @backward ""
%4 : f32[4, 4] = aten::mm(self=%3, mat2=%2) @backward ""
return gradient "w" %4
)";

TEST_CASE("a batch that is cut cuts what is made of it, and leaves gradients as summands") {
  const auto mesh = sharding::mesh_from_text("replicate=2");
  const Placed placed = place(ir::from_text(kStep), mesh, pins({{"x", "[S(0)]"}}));
  CHECK(out_of(placed, 0) == "[S(0)]");
  CHECK(out_of(placed, 1) == "[S(1)]");
  CHECK(out_of(placed, 2) == "[P(sum)]");
  for (int rank = 0; rank < 2; ++rank) {
    const ir::Graph local = local_graph(placed, rank);
    ir::verify(local);
    const auto reduces = std::ranges::count(local.nodes, std::string("shoal::all_reduce"), &ir::Node::op);
    CHECK(reduces == 1);
    CHECK(local.at(local.sources[1].value).type.shape == sharding::Shape{4, 4});
  }
}

TEST_CASE("a view of what two axes have cut cuts what the inner one leaves") {
  const auto mesh = sharding::mesh_from_text("shard=2 tensor=2");
  const Placed placed = place(ir::from_text(R"(graph captured
%0 = input "x" : f32[6, 4, 2, 8]
%1 : f32[24, 2, 8] = aten::view(self=%0, size=[24, 2, 8]) @forward ""
return output "y" %1
)"),
                              mesh, pins({{"x", "[S(0), S(1)]"}}));
  CHECK(out_of(placed, 0) == "[S(0, unit=2), S(0, outer=6)]");
  for (int rank = 0; rank < 4; ++rank)
    CHECK(local_shape(mesh, placed.nodes[0].out[0], {24, 2, 8}, rank) == sharding::Shape{6, 2, 8});
}

TEST_CASE("a mask that all readers cut is made cut") {
  const auto mesh = sharding::mesh_from_text("replicate=2");
  const Placed placed = place(ir::from_text(R"(graph captured
%0 = input "x" : f32[8, 4]
%1 = constant "c0" : f32[8, 4]
%2 : f32[8, 4] = aten::neg(self=%1) @forward ""
%3 : f32[8, 4] = aten::mul.Tensor(self=%0, other=%2) @forward ""
return output "y" %3
)"),
                              mesh, pins({{"x", "[S(0)]"}}));
  CHECK(out_of(placed, 0) == "[S(0)]");
}

TEST_CASE("a pin that does not fit its tensor is refused by name") {
  const auto mesh = sharding::mesh_from_text("replicate=2");
  CHECK(error_of([&] { place(ir::from_text(kStep), mesh, pins({{"x", "[S(2)]"}})); }).find("input \"x\"") !=
        std::string::npos);
  Pins unknown;
  unknown.outputs.push_back({.module = "h.*", .placements = {}});
  CHECK(error_of([&] { place(ir::from_text(kStep), mesh, unknown); }).find("no module is called \"h.*\"") !=
        std::string::npos);
}

TEST_CASE("a star stands for anything but a dot") {
  CHECK(matches("h.*.attn", "h.11.attn"));
  CHECK(!matches("h.*.attn", "h.1.x.attn"));
  CHECK(!matches("h.*", "h"));
  CHECK(matches("*", ""));
}
