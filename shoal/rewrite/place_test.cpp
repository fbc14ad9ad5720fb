// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/place.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/partition.h"
#include "shoal/rewrite/plan.h"

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
    const ir::Graph local = partition(placed, rank);
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

TEST_CASE("a plan is read, printed, and says where it is wrong") {
  const std::string text =
      "parameter h.*.mlp.c_fc.weight shard=S(1, outer=3, unit=64) tensor=S(1)\noutput h.*.mlp tensor=R\n";
  const Plan plan = plan_from_text("# a comment\n\n" + text);
  CHECK(to_text(plan) == text);
  CHECK(plan_from_text(to_text(plan)) == plan);
  const auto wrong = [](const std::string& line) {
    return error_of([&] { plan_from_text(line, "my.plan"); });
  };
  CHECK(wrong("weight a tensor=R").find("my.plan:1: 'weight' is neither") != std::string::npos);
  CHECK(wrong("parameter a tensor").find("'tensor' is not AXIS=PLACEMENT") != std::string::npos);
  CHECK(wrong("parameter a tensor=S(x)").find("my.plan:1") != std::string::npos);
  CHECK(wrong("parameter a tensor=R tensor=S(0)").find("axis 'tensor' is there twice") != std::string::npos);
  CHECK(wrong("parameter a").find("no placement") != std::string::npos);
}

TEST_CASE("a plan for another model or mesh is refused, and contradictory lines are") {
  const auto mesh = sharding::mesh_from_text("replicate=2 tensor=2");
  const Plan plan = plan_from_text("parameter h.*.w tensor=S(0)\nparameter h.0.* tensor=S(1)\n");
  CHECK(error_of([&] { check_fits(plan, mesh, {"fc.weight"}); }).find("no parameter h.*.w, h.0.*") !=
        std::string::npos);
  CHECK(error_of([&] {
          check_fits(plan, sharding::mesh_from_text("shard=2"), {"h.0.w"});
        }).find("axis 'tensor'") != std::string::npos);
  CHECK(error_of([&] { parameter_layout(plan, mesh, "h.0.w"); }).find("leave one of them out") !=
        std::string::npos);
  CHECK(to_text(parameter_layout(plan, mesh, "h.1.w")) == "[R, S(0)]");
}

TEST_CASE("a star stands for anything but a dot") {
  CHECK(matches("h.*.attn", "h.11.attn"));
  CHECK(!matches("h.*.attn", "h.1.x.attn"));
  CHECK(!matches("h.*", "h"));
  CHECK(matches("*", ""));
}
