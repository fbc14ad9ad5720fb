// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/found.h"

#include <doctest/doctest.h>

#include <array>
#include <string>

#include "shoal/base/error_test.h"
#include "shoal/compile/compile.h"
#include "shoal/ir/text.h"

using namespace shoal;
using namespace shoal::compile;

namespace {

// Two products, and the gradients of their weights.
const char* const kStep = R"(graph captured
%0 = parameter "h.0.up" : f32[64, 256]
%1 = parameter "h.0.down" : f32[256, 64]
%2 = input "x" : f32[32, 64]
%3 : f32[32, 256] = aten::mm(self=%2, mat2=%0) @forward "h.0"
%4 : f32[32, 64] = aten::mm(self=%3, mat2=%1) @forward "h.0"
%5 : f32[256, 32]{1,256} = aten::t(self=%3) @backward "h.0"
%6 : f32[256, 64] = aten::mm(self=%5, mat2=%4) @backward "h.0"
%7 : f32[64, 256]{1,64} = aten::t(self=%1) @backward "h.0"
%8 : f32[32, 256] = aten::mm(self=%4, mat2=%7) @backward "h.0"
%9 : f32[64, 32]{1,64} = aten::t(self=%2) @backward "h.0"
%10 : f32[64, 256] = aten::mm(self=%9, mat2=%8) @backward "h.0"
return gradient "h.0.up" %10, gradient "h.0.down" %6
)";

const std::array<OptimizerPart, 1> kParts = {OptimizerPart{{}, SGD{.lr = 0.1}}};

Whole placed(const std::string& plan, const char* mesh, bool is_settled = false) {
  return compile_whole(ir::from_text(kStep), plan_from_text(plan), sharding::mesh_from_text(mesh),
                       {.then = Then::Update, .update = {.parts = kParts}, .is_settled = is_settled});
}

}  // namespace

TEST_CASE("what no line says of an axis is found, and lines of the plan from then on") {
  const Whole whole = placed("", "tensor=2");
  CHECK(to_text(whole.plan) == "parameter h.*.down tensor=S(0)\nparameter h.*.up tensor=S(1)\nfind tensor\n");
  CHECK(to_text(whole.placed.nodes[1].out[0]) == "[P(sum)]");
  CHECK(to_text(whole.placed.kept[0]) == "[S(1)]");
}

TEST_CASE("a plan that was found is found again when it is given, by a later graph too") {
  const Whole first = placed("", "shard=2 tensor=2");
  CHECK(placed(to_text(first.plan), "shard=2 tensor=2").placed == first.placed);
  CHECK(placed(to_text(first.plan), "shard=2 tensor=2", true).placed == first.placed);
}

TEST_CASE("lines of an axis are all there is to it, unless one says to find the rest") {
  const std::string line = "parameter h.*.up tensor=S(0)\n";
  CHECK(to_text(placed(line, "tensor=2").plan) == line);
  const Whole partly = placed(line + "find tensor\n", "tensor=2");
  CHECK(to_text(partly.plan) == line + "parameter h.*.down tensor=S(0)\nfind tensor\n");
}

TEST_CASE("of what is settled a parameter without a line is whole") {
  const Whole whole = placed("parameter h.*.up tensor=S(1)\nfind tensor\n", "tensor=2", true);
  CHECK(to_text(whole.placed.kept[0]) == "[S(1)]");
  CHECK(to_text(whole.placed.kept[1]) == "[R]");
}

TEST_CASE("a line of the planner says what the search may do, until what is found is settled") {
  const std::string lines = "parameter h.*.down tensor=S(0)\nparameter h.*.up tensor=S(1)\nfind tensor\n";
  CHECK(to_text(placed("planner kept=64KiB budget=100", "tensor=2").plan) ==
        lines + "planner kept=64KiB budget=100\n");
  CHECK(error_of([] { placed("planner kept=63KiB", "tensor=2"); }) ==
        "planner.kept is 63.0KiB (64512 bytes), and over 2 ranks of 'tensor' no placement leaves a rank less "
        "than "
        "64.0KiB (65536 bytes) of the model's parameters. Remedy: that much, or more ranks");
  CHECK(to_text(placed("planner kept=63KiB", "tensor=2", true).placed.kept[0]) == "[R]");
}

TEST_CASE("of several processes with a budget the first searches") {
  int asked = 0;
  std::string told;
  Settings settings{.then = Then::Update, .update = {.parts = kParts}};
  settings.from_first = [&](const std::function<std::string()>& make) {
    ++asked;
    return told.empty() ? told = make() : told;
  };
  const auto of = [&](const char* plan) {
    return compile_whole(ir::from_text(kStep), plan_from_text(plan), sharding::mesh_from_text("tensor=2"),
                         settings);
  };
  of("");
  CHECK(asked == 0);  // without a budget all of them find the same
  const Whole first = of("planner budget=100");
  CHECK(of("planner budget=1e-9").placed == first.placed);  // no time to search, and no need
  CHECK(asked == 2);
}

TEST_CASE("two axes that nobody says anything about are found together where that is soon done") {
  const Whole whole = placed("", "second=2 first=2");
  CHECK(to_text(whole.plan) ==
        "parameter h.*.down first=S(0)\nparameter h.*.up first=S(1)\nparameter h.*.down second=S(0)\n"
        "parameter h.*.up second=S(1)\nfind first\nfind second\n");
  REQUIRE(whole.found.size() == 1);
  REQUIRE(whole.found[0].axes.size() == 2);
  CHECK(whole.found[0].axes[0].decided.axis == 1);
  CHECK(to_text(whole.placed.kept[0]) == "[S(1), S(1)]");
  CHECK(to_text(whole.placed.nodes[1].out[0]) == "[P(sum), P(sum)]");
  CHECK(placed(to_text(whole.plan), "second=2 first=2").placed == whole.placed);
  CHECK(error_of([] { check_fits(plan_from_text("find tp\n"), sharding::mesh_from_text("tensor=2"), {}); }) ==
        "plan: placements are to be found over axis 'tp', and the mesh is 'tensor=2'");
}

TEST_CASE("a split line binds its parameters, leaves the others whole, and lets the axis cut samples") {
  const Whole whole = placed("split h.*.down\n", "tensor=2");
  CHECK(to_text(whole.plan) ==
        "parameter h.*.down tensor=S(0)\nparameter h.*.up tensor=R\nfind tensor\nsplit h.*.down\n");
  CHECK(placed(to_text(whole.plan), "tensor=2").placed == whole.placed);
  CHECK(error_of([] {
          check_fits(plan_from_text("split h.0.down\n"), sharding::mesh_from_text("shard=2"), {"h.0.down"});
        }) ==
        "plan: 'split h.0.down', and no axis of 'shard=2' is there to split over: each cuts the batch or the "
        "model's stages, or lines say what lies how. Remedy: a tensor degree");
  CHECK(error_of([] {
          check_fits(plan_from_text("split g\n"), sharding::mesh_from_text("tensor=2"), {"h.0.down"});
        }) == "plan: this model has no parameter g; it has 1, the first is h.0.down");
}

TEST_CASE("what a rank has no room for is kept in parts, and nothing else") {
  const auto found = [](const std::string& plan, const char* mesh) { return placed(plan, mesh); };
  // 128 KiB of two matrices over two ranks that share no layers.
  CHECK(to_text(found("planner zero=true", "shard=2").plan) == "zero shard stage=2\nplanner zero=true\n");
  const Whole one = found("planner zero=true kept=96KiB", "shard=2");
  CHECK(one.plan.zero_parts.size() == 1);
  CHECK(one.found.back().in_parts.size() == 1);
  const Whole both = found("planner zero=true kept=64KiB", "shard=2");
  CHECK(to_text(both.plan) ==
        "zero shard stage=2 parts=h.*.down parts=h.*.up\nplanner zero=true kept=64KiB\n");
  CHECK(to_text(both.placed.kept[0]) == "[S(0)]");
  CHECK(error_of([&] { found("planner zero=true kept=63KiB", "shard=2"); }) ==
        "planner.kept is 63.0KiB (64512 bytes), and over 2 ranks of 'shard' no placement leaves a rank less "
        "than "
        "64.0KiB (65536 bytes) of the model's parameters. Remedy: that much, or more ranks");
  // As what stage 3 makes of all, and as the plan says when it is given again.
  CHECK(both.placed == found("zero shard stage=3", "shard=2").placed);
  for (const bool is_settled : {false, true}) {
    CHECK(placed(to_text(one.plan), "shard=2", is_settled).placed == one.placed);
    CHECK(to_text(placed(to_text(one.plan), "shard=2", is_settled).plan) == to_text(one.plan));
  }
  // Beside layers that are shared: a quarter of each.
  const Whole shared = found("planner zero=true kept=32KiB", "shard=2 tensor=2");
  CHECK(shared.plan.zero_parts.size() == 2);
  CHECK(to_text(shared.placed.kept[0]) == "[S(0), S(1)]");
  CHECK(found("planner zero=true kept=64KiB", "shard=2 tensor=2").plan.zero_parts.empty());
  CHECK(error_of([&] { found("planner zero=true", "tensor=2"); }) ==
        "planner.zero finds what ranks of the axis 'shard' keep in parts, and its degree is 1. Remedy: a "
        "degree above "
        "1");
  CHECK(error_of([&] { found("zero shard stage=1\nplanner zero=true", "shard=2"); }) ==
        "planner.zero finds which parameters are kept in parts beside what ZeRO stage 2 keeps so, and the "
        "stage is 1. "
        "Remedy: leave one of them out");
  CHECK(error_of([&] { found("zero shard stage=3 parts=h.*.up", "shard=2"); }) ==
        "plan:1: parts= is of stage=2, and the stage is 3");
  CHECK(error_of([&] {
          check_fits(plan_from_text("zero shard stage=2 parts=h.*.wieght"),
                     sharding::mesh_from_text("shard=2"), {"h.0.up"});
        }).find("no parameter h.*.wieght") != std::string::npos);
  CHECK(error_of([&] {
          found("zero shard stage=2 parts=h.*.up", "tensor=2");
        }).find("stores parts over the axis 'shard', and its degree is 1") != std::string::npos);
}
