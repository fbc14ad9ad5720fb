// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/compile.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/compile/accumulate.h"
#include "shoal/ir/text.h"

using namespace shoal;
using namespace shoal::compile;

namespace {

// A mean over the batch, and its gradient.
const char* const kStep = R"(graph captured
%0 = parameter "w" : f32[6, 4]
%1 = input "x" : f32[8, 6]
%2 : f32[8, 4] = aten::mm(self=%1, mat2=%0) @forward "fc"
%3 loss : f32[] = aten::sum(self=%2, dtype=none) @forward
%4 : f32[6, 8]{1,6} = aten::t(self=%1) @backward "fc"
%5 : f32[6, 4] = aten::mm(self=%4, mat2=%2) @backward "fc"
return loss "loss" %3, gradient "w" %5
)";

const std::array<OptimizerPart, 1> kParts = {OptimizerPart{{}, SGD{.lr = 0.1}}};

Compiled compiled(Then then, const Plan& plan, const char* mesh, int rank = 0) {
  return compile::compile(then == Then::UpdateSums || then == Then::UpdateGiven
                              ? graph_of_sums({{"w", ir::contiguous(DType::Float32, {6, 4})}})
                              : ir::from_text(kStep),
                          plan, sharding::mesh_from_text(mesh), rank,
                          {.then = then, .update = {.parts = kParts}});
}

// The messages of a program, by segment.
std::string messages(const program::Program& program) {
  std::string text;
  for (const auto& segment : program.segments)
    for (const auto& instruction : segment.instructions)
      if (const auto* compute = std::get_if<program::Compute>(&instruction))
        for (const char* op : {"all_reduce", "reduce_scatter", "all_gather", "accumulate", "sgd"})
          if (compute->op.starts_with(concat("shoal::", op)))
            text += concat(op, segment.phase == ir::Phase::Update ? " in update; " : "; ");
  return text;
}

}  // namespace

TEST_CASE("the moves are run in their order, and each can be looked at") {
  std::vector<std::string> seen;
  Settings settings{.then = Then::Update, .update = {.parts = kParts}, .print_after = "all"};
  settings.print = [&](std::string_view move, const std::string& text) {
    seen.emplace_back(move);
    CHECK(!text.empty());
  };
  const auto made =
      compile::compile(ir::from_text(kStep), {}, sharding::mesh_from_text("replicate=2"), 0, settings);
  CHECK(seen == std::vector<std::string>{"tables", "bag_offsets", "precision", "cleanup", "update", "place",
                                         "sparse_gradients", "partition", "recompute", "gather_ahead",
                                         "buckets", "packing", "offload", "lower"});
  CHECK(made.whole.times.size() == seen.size());
  seen.clear();
  settings.print_after = "lower";
  compile::compile(ir::from_text(kStep), {}, {}, 0, settings);
  CHECK(seen == std::vector<std::string>{"lower"});
  settings.print_after = "partitoin";
  CHECK(error_of([&] {
          compile::compile(ir::from_text(kStep), {}, {}, 0, settings);
        }).find("there is no move 'partitoin' to print after; did you mean 'partition'?") !=
        std::string::npos);
}

TEST_CASE("a step's gradient is reduced in backward and the update commits") {
  CHECK(messages(compiled(Then::Update, {}, "replicate=2").program) ==
        "all_reduce; all_reduce; sgd in update; ");
  CHECK(messages(compiled(Then::Update, {}, "replicate=1").program) == "sgd in update; ");
}

TEST_CASE("micro-batches are summed where they are, and their sum is reduced once") {
  // The loss is reduced in each; the gradients are not.
  CHECK(messages(compiled(Then::Accumulate, {}, "replicate=2").program) ==
        "all_reduce; accumulate in update; ");
  CHECK(messages(compiled(Then::UpdateSums, {}, "replicate=2").program) == "all_reduce; sgd in update; ");
  const auto made = compiled(Then::Accumulate, {}, "replicate=2");
  CHECK(to_text(made.whole.placed.nodes.back().out[0]) == "[P(sum)]");
  CHECK(to_text(made.whole.placed.results.back()) == "[P(sum)]");
  CHECK(std::ranges::count(made.local.nodes, ir::Phase::Update, &ir::Node::phase) ==
        1);  // nothing is made of it
  // What all ranks have alike moves nothing.
  CHECK(messages(compiled(Then::UpdateGiven, {}, "replicate=2").program) == "sgd in update; ");
  CHECK(messages(compiled(Then::UpdateSums, {.zero_stage = 1}, "shard=2").program) ==
        "reduce_scatter; sgd in update; all_gather in update; ");
}

TEST_CASE("where gradients are kept in parts each micro-batch's are reduced, unless the plan says once") {
  CHECK(messages(compiled(Then::Accumulate, {.zero_stage = 2}, "shard=2").program) ==
        "reduce_scatter; all_reduce; accumulate in update; ");
  CHECK(messages(compiled(Then::Accumulate, {.zero_stage = 2, .reduces_each = false}, "shard=2").program) ==
        "all_reduce; accumulate in update; ");
  CHECK(messages(compiled(Then::Accumulate, {.reduces_each = true}, "replicate=2").program) ==
        "all_reduce; all_reduce; accumulate in update; ");
}

TEST_CASE("axes have the names that a plan gives them") {
  const Plan plan = plan_from_text("batch dp fsdp\nzero fsdp stage=3\nparameter w tp=S(1)\n");
  const auto made = compiled(Then::Update, plan, "dp=2 fsdp=2 tp=2");
  CHECK(to_text(made.whole.placed.kept[0]) == "[R, S(0), S(1)]");  // the parameter
  CHECK(to_text(made.whole.placed.kept[1]) == "[S(0), S(0), R]");  // the batch
  CHECK(error_of([&] {
          compiled(Then::Update, plan_from_text("zero fsdp stage=3"), "fsdp=2");
        }).find("stores parts over the axis 'fsdp', which does not cut the batch") != std::string::npos);
}

TEST_CASE("pins: ZeRO's stages") {
  const auto mesh = sharding::mesh_from_text("shard=2");
  const auto text = [&](int stage) {
    const auto pins = pins_of({.zero_stage = stage}, mesh, "w", {6, 4}, Uncut::Elements);
    return concat(to_text(pins.kept), to_text(pins.used), to_text(pins.gradient), to_text(pins.updated),
                  to_text(pins.summed));
  };
  CHECK(text(0) == "[R][R][R][R][P(sum)]");
  CHECK(text(1) == "[R][R][P(sum)][S(0)][P(sum)]");
  CHECK(text(2) == "[R][R][S(0)][S(0)][S(0)]");
  CHECK(text(3) == "[S(0)][R][S(0)][S(0)][S(0)]");
  // The dim whose parts differ least is cut: of 5 x 4 over 2 the second.
  CHECK(to_text(pins_of({.zero_stage = 2}, mesh, "w", {5, 4}, Uncut::Elements).updated) == "[S(1)]");
  // An optimizer that looks at whole tensors has them.
  CHECK(to_text(pins_of({.zero_stage = 2}, mesh, "w", {6, 4}, Uncut::All).updated) == "[R]");
}

TEST_CASE("what was accumulated is weighed, and the last one divides") {
  const ir::Graph graph = append_accumulation(ir::from_text(kStep), {.kind = Normaliser::Kind::Sum});
  const ir::Node& node = graph.nodes.back();
  CHECK(ir::to_text(graph, node)
            .find("shoal::accumulate(sums=[%6], gradients=[%5], keep=%7, weight=%8, "
                  "divisor=%9) @update") != std::string::npos);
  CHECK(graph.results.back().value == *node.outputs[0]);
}
