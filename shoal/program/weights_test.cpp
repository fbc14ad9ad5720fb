// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "shoal/ir/text.h"
#include "shoal/program/program.h"

namespace weights_test {

using namespace shoal;
using namespace shoal::program;
using ir::Graph;
using ir::Phase;
using ir::Role;
using ir::ValueId;

static ValueId made(Graph& graph, const std::string& op, const std::vector<ValueId>& inputs, int stage,
                    Phase phase = Phase::Forward) {
  ir::Node node{.op = op, .arguments = {{"self", inputs[0]}}, .outputs = {}, .phase = phase, .stage = stage};
  if (inputs.size() > 1) node.arguments.push_back({"other", inputs[1]});
  if (inputs.size() > 1 && op != "aten::mul.Tensor") node.arguments.push_back({"alpha", std::int64_t{1}});
  return *graph.at(graph.add_node(std::move(node), {graph.at(inputs[0]).type})).outputs[0];
}

// Of a rank with the stages 1 and 2: both have a weight, w1 and w2, and stage 1 sends back what it makes of stage 2's
// gradient.
static Graph with_weights() {
  Graph graph;
  const auto type = ir::contiguous(DType::Float32, {2});
  const auto w1 = graph.add_source(Role::Parameter, "w1", type);
  const auto w2 = graph.add_source(Role::Parameter, "w2", type);
  const auto x2 = made(graph, "aten::relu", {made(graph, "aten::cumsum", {w1}, 1)}, 1);
  const auto loss = made(graph, "aten::add.Tensor", {x2, w2}, 2);
  ValueId gradient = made(graph, "aten::cumsum", {loss}, 2, Phase::Backward);
  for (const int stage : {2, 1}) {
    const auto product = made(graph, "aten::mul.Tensor", {gradient, x2}, stage, Phase::Backward);
    graph.add_result(Role::Gradient, "w" + std::to_string(stage),
                     made(graph, "aten::neg", {product}, stage, Phase::Backward));
    gradient = made(graph, "aten::sub.Tensor", {gradient, stage == 2 ? w2 : x2}, stage, Phase::Backward);
  }
  graph.add_node({.op = "shoal::send",
                  .arguments = {{"self", gradient}, {"axis", "pipeline"}, {"to", std::int64_t{0}}},
                  .outputs = {},
                  .phase = Phase::Backward,
                  .stage = 1},
                 {});
  graph.add_result(Role::Loss, "loss", loss);
  return graph;
}

static std::string segments_of(const Program& program) {
  std::string text;
  for (const Segment& segment : program.segments) {
    text += segment.is_weights ? "weights" : std::string(ir::name_of(segment.phase));
    text += ' ' + std::to_string(segment.stage) + ':';
    for (const auto& instruction : segment.instructions)
      if (const auto* compute = std::get_if<Compute>(&instruction)) text += ' ' + compute->op;
    text += '\n';
  }
  return text;
}

TEST_CASE("a backward in two parts has apart what leads to gradients of weights alone") {
  const std::string forward =
      "forward 1: aten::cumsum aten::relu\nforward 2: aten::add.Tensor\n"
      "backward 2: aten::cumsum";
  CHECK(segments_of(lower(with_weights(), Buffers::AfterForward, 0, {1, 2})) ==
        forward +
            " aten::mul.Tensor aten::neg aten::sub.Tensor\n"
            "backward 1: aten::mul.Tensor aten::neg aten::sub.Tensor shoal::send\nupdate 2:\nupdate 1:\n");
  const Program program = lower(with_weights(), Buffers::AfterForward, 0, {1, 2}, Backward::InTwoParts);
  CHECK(segments_of(program) ==
        forward +
            " aten::sub.Tensor\nweights 2: aten::mul.Tensor aten::neg\n"
            "backward 1: aten::sub.Tensor shoal::send\nweights 1: aten::mul.Tensor aten::neg\n"
            "update 2:\nupdate 1:\n");
  CHECK(from_text(to_text(program)) == program);
  CHECK(program.segments.at(*find_segment(program, Phase::Backward, 1)).is_weights == false);
  CHECK(program.segments.at(*find_weights(program, 1)).is_weights);
}

TEST_CASE("what another stage reads is of the first part, though that one makes gradients of weights alone") {
  Graph graph = with_weights();
  graph.nodes.pop_back();  // stage 1 is the first
  CHECK(segments_of(lower(graph, Buffers::AfterForward, 0, {1, 2}, Backward::InTwoParts))
            .find("backward 2: aten::cumsum aten::sub.Tensor\nweights 2: aten::mul.Tensor aten::neg\n"
                  "backward 1:\nweights 1: ") != std::string::npos);
}

TEST_CASE("what another stage's weights have a view of is not written over") {
  Graph graph;
  const auto w = graph.add_source(Role::Parameter, "w", ir::contiguous(DType::Float32, {2}));
  const auto x = made(graph, "aten::cumsum", {w}, 1);
  const auto view = made(graph, "aten::view", {x}, 2);
  const auto loss = made(graph, "aten::cumsum", {view}, 2);
  const auto late = made(graph, "aten::cumsum", {view}, 2, Phase::Backward);
  graph.add_result(Role::Gradient, "w", late);
  graph.add_result(Role::Output, "y", made(graph, "aten::neg", {x}, 1, Phase::Backward));
  graph.add_result(Role::Loss, "loss", loss);
  const auto writes_over = [&](Backward backward) {
    const Program program = lower(graph, Buffers::AfterForward, 0, {1, 2}, backward);
    const auto& list = program.segments.at(*find_segment(program, Phase::Backward, 1)).instructions;
    return std::get<Compute>(list.at(0)).over.has_value();
  };
  CHECK(writes_over(Backward::Whole));
  CHECK(!writes_over(Backward::InTwoParts));
}

TEST_CASE("a result that is no gradient is of backward's first part, with all that it is made of") {
  Graph graph = with_weights();
  graph.results.front().role = Role::Output;
  CHECK(segments_of(lower(graph, Buffers::AfterForward, 0, {1, 2}, Backward::InTwoParts))
            .find("weights 2:\n") != std::string::npos);
}

// In the order in which the segments run: what is read is there.
static bool can_run(const Program& program, const std::vector<std::size_t>& order) {
  std::set<Slot> live;
  for (const auto& source : program.sources) live.insert(source.slot);
  for (const std::size_t number : order)
    for (const auto& instruction : program.segments[number].instructions) {
      if (const auto* freed = std::get_if<Free>(&instruction))
        for (const Slot slot : freed->slots) live.erase(slot);
      const auto* compute = std::get_if<Compute>(&instruction);
      if (compute == nullptr) continue;
      for (const Slot slot : ir::inputs_of({compute->op, compute->arguments, {}, {}, {}}))
        if (!live.contains(slot)) return false;
      for (const auto& output : compute->outputs)
        if (output) live.insert(*output);
    }
  return true;
}

TEST_CASE("what weights read is there, and as it was, whichever stage's backward comes first") {
  const Program program = lower(with_weights(), Buffers::AfterForward, 0, {1, 2}, Backward::InTwoParts);
  // forward 1, 2, then backward 2, weights 2, backward 1, weights 1
  CHECK(can_run(program, {0, 1, 2, 3, 4, 5}));
  CHECK(can_run(program, {0, 1, 2, 4, 3, 5}));
  CHECK(can_run(program, {0, 1, 2, 4, 5, 3}));
  for (const auto number : {3U, 4U, 5U})  // gradient and x2 are read by two of them
    for (const auto& instruction : program.segments[number].instructions)
      if (const auto* compute = std::get_if<Compute>(&instruction);
          compute && compute->op == "aten::sub.Tensor")
        CHECK(!compute->over);
  // What is a segment's own is written over as ever.
  const auto& own = program.segments[5].instructions;
  CHECK(std::ranges::any_of(own, [](const auto& instruction) {
    const auto* compute = std::get_if<Compute>(&instruction);
    return compute != nullptr && compute->op == "aten::neg" && compute->over.has_value();
  }));
}

}  // namespace weights_test
