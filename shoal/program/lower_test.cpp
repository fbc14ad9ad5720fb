// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/program/program.h"

using namespace shoal;
using namespace shoal::program;
using ir::Graph;
using ir::Phase;
using ir::Role;
using ir::ValueId;

static ir::TensorType f32(std::vector<std::int64_t> shape) {
  return ir::contiguous(DType::Float32, std::move(shape));
}

static ValueId unary(Graph& graph, const std::string& op, ValueId input, Phase phase = Phase::Forward) {
  const auto node =
      graph.add_node({.op = op, .arguments = {{"self", input}}, .outputs = {}, .phase = phase, .module = "m"},
                     {graph.at(input).type});
  return *graph.at(node).outputs[0];
}

static ValueId binary(Graph& graph, const std::string& op, ValueId self, ValueId other,
                      Phase phase = Phase::Forward) {
  const auto node =
      graph.add_node({.op = op,
                      .arguments = {{"self", self}, {"other", other}, {"alpha", std::int64_t{1}}},
                      .outputs = {},
                      .phase = phase,
                      .module = ""},
                     {graph.at(self).type});
  return *graph.at(node).outputs[0];
}

static ValueId sgd(Graph& graph, ValueId parameter, ValueId gradient) {
  const auto node = graph.add_node({.op = "shoal::sgd",
                                    .arguments = {{"parameters", ir::ValueList{parameter}},
                                                  {"gradients", ir::ValueList{gradient}},
                                                  {"momentum_buffers", ir::ValueList{}}},
                                    .outputs = {},
                                    .phase = Phase::Update,
                                    .module = ""},
                                   {graph.at(parameter).type});
  return *graph.at(node).outputs[0];
}

// y = sin(cos(w)) is the loss's stand-in; its gradient updates w.
static Graph small_step() {
  Graph graph;
  const auto w = graph.add_source(Role::Parameter, "w", f32({2}));
  const auto b = graph.add_source(Role::Buffer, "b", f32({2}));
  const auto y = unary(graph, "aten::cumsum", w);
  const auto z = unary(graph, "aten::relu", y);
  const auto count = binary(graph, "aten::add.Tensor", b, z);
  const auto g = binary(graph, "aten::mul.Tensor", z, w, Phase::Backward);
  graph.add_result(Role::Loss, "loss", z);
  graph.add_result(Role::Gradient, "w", g);
  graph.add_result(Role::Buffer, "b", count);
  graph.add_result(Role::Parameter, "w", sgd(graph, w, g));
  return graph;
}

TEST_CASE("a step lowers to forward and backward, then updates in place and copies of buffers") {
  CHECK(to_text(lower(small_step())) ==
        "source %0 parameter \"w\" : f32[2]\n"
        "source %1 buffer \"b\" : f32[2]\n"
        "forward:\n"
        "%2 : f32[2] = aten::cumsum(self=%0) \"m\"\n"
        "%3 : f32[2] = aten::relu(self=%2) over %2 \"m\"\n"
        "free %2\n"
        "%4 : f32[2] = aten::add.Tensor(self=%1, other=%3, alpha=1)\n"
        "backward:\n"
        "%5 : f32[2] = aten::mul.Tensor(self=%3, other=%0, alpha=1)\n"
        "update:\n"
        "%0 : f32[2] = shoal::sgd(parameters=[%0], gradients=[%5], momentum_buffers=%[])\n"
        "copy %4 to %1\n"
        "free %4\n"
        "return loss \"loss\" %3, gradient \"w\" %5, buffer \"b\" %1, parameter \"w\" %0\n");
}

TEST_CASE("a program reads back as it was written") {
  const Program program = lower(small_step());
  CHECK(from_text(to_text(program)) == program);
}

static std::optional<Slot> over_of(const Program& program, std::string_view op) {
  for (const auto& instruction : program.segments[0].instructions)
    if (const auto* compute = std::get_if<Compute>(&instruction); compute != nullptr && compute->op == op)
      return compute->over;
  return std::nullopt;
}

TEST_CASE("an input is written over only when nobody looks at its memory again") {
  Graph graph;
  const auto x = graph.add_source(Role::Input, "x", f32({2}));
  const auto a = unary(graph, "aten::cumsum", x);

  SUBCASE("it dies there: yes") {
    graph.add_result(Role::Output, "y", unary(graph, "aten::relu", a));
    CHECK(over_of(lower(graph), "aten::relu") == a);
  }
  SUBCASE("it is a source: no") {
    graph.add_result(Role::Output, "y", unary(graph, "aten::relu", x));
    CHECK_FALSE(over_of(lower(graph), "aten::relu"));
  }
  SUBCASE("it is a view of a source: no") {
    graph.add_result(Role::Output, "y", unary(graph, "aten::relu", unary(graph, "aten::view", x)));
    CHECK_FALSE(over_of(lower(graph), "aten::relu"));
  }
  SUBCASE("a view of it is read later: no") {
    const auto view = unary(graph, "aten::view", a);
    const auto y = unary(graph, "aten::relu", a);
    graph.add_result(Role::Output, "y", binary(graph, "aten::add.Tensor", y, view));
    CHECK_FALSE(over_of(lower(graph), "aten::relu"));
  }
  SUBCASE("a view of it is a result: no") {
    graph.add_result(Role::Output, "v", unary(graph, "aten::view", a));
    graph.add_result(Role::Output, "y", unary(graph, "aten::relu", a));
    CHECK_FALSE(over_of(lower(graph), "aten::relu"));
  }
  SUBCASE("another library's op may have kept it: no") {
    const auto z = unary(graph, "other::op", a);
    const auto y = unary(graph, "aten::relu", a);
    graph.add_result(Role::Output, "y", binary(graph, "aten::add.Tensor", y, z));
    CHECK_FALSE(over_of(lower(graph), "aten::relu"));
  }
  SUBCASE("its last view dies there: yes") {
    graph.add_result(Role::Output, "y", unary(graph, "aten::relu", unary(graph, "aten::view", a)));
    CHECK(over_of(lower(graph), "aten::relu"));
  }
  SUBCASE("the output has another shape: no") {
    const auto node = graph.add_node(
        {.op = "aten::relu", .arguments = {{"self", a}}, .outputs = {}, .phase = {}, .module = ""},
        {f32({2, 1})});
    graph.add_result(Role::Output, "y", *graph.at(node).outputs[0]);
    CHECK_FALSE(over_of(lower(graph), "aten::relu"));
  }
}

TEST_CASE("what shares memory with a changed parameter is cloned before the update") {
  Graph graph;
  const auto w = graph.add_source(Role::Parameter, "w", f32({2}));
  const auto v = graph.add_source(Role::Parameter, "v", f32({2}));
  graph.add_result(Role::Output, "old", unary(graph, "aten::view", w));
  graph.add_result(Role::Gradient, "v", w);  // d(w · v)/dv
  const auto new_w = sgd(graph, w, v);
  const auto new_v = sgd(graph, v, w);
  graph.add_result(Role::Parameter, "w", new_w);
  graph.add_result(Role::Parameter, "v", new_v);
  const Program program = lower(graph);
  const auto& first = std::get<Compute>(program.segments.at(2).instructions.at(0));
  CHECK(first.op == "aten::clone");
  const auto* old = find_result(program, Role::Output, "old");
  CHECK(old->slot.index >= graph.values.size());
  // Both updates read what the parameters were before either was changed.
  for (const auto& instruction : program.segments.at(2).instructions)
    if (const auto* compute = std::get_if<Compute>(&instruction);
        compute != nullptr && compute->op == "shoal::sgd")
      CHECK(std::get<ir::ValueList>(compute->arguments[1].value)[0]->index >= graph.values.size());
}

// Rank 1 of 2, in parts along `dim`; `also` reads the part as well.
static std::string text_of_a_part(int dim, const std::string& also = "", const std::string& result = "") {
  const std::string half = dim == 0 ? "f32[2, 6]" : "f32[4, 3]";
  return to_text(lower(ir::from_text(
      "graph local\n"
      "%0 = parameter \"w\" : f32[4, 6]\n"
      "%1 = input \"g\" : " +
      half +
      "\n"
      "%2 : " +
      half + " = shoal::part(self=%0, dim=" + std::to_string(dim) +
      ", outer=1, unit=1, index=1, count=2) @update \"\"\n" + also + "%3 : " + half +
      " = shoal::sgd(parameters=[%2], gradients=[%1], momentum_buffers=%[]) @update \"\"\n"
      "%4 : f32[4, 6] = shoal::all_gather_into(wholes=[%0], self=%3, axis=\"shard\") @update \"\"\n"
      "return parameter \"w\" %4" +
      result + "\n")));
}

TEST_CASE("a part of what is gathered whole in the end is changed where it lies") {
  CHECK(text_of_a_part(0) ==
        "source %0 parameter \"w\" : f32[4, 6]\n"
        "source %1 input \"g\" : f32[2, 6]\n"
        "forward:\n"
        "backward:\n"
        "%2 : f32[2, 6] = shoal::part(self=%0, dim=0, outer=1, unit=1, index=1, count=2)\n"
        "update:\n"
        "%2 : f32[2, 6] = shoal::sgd(parameters=[%2], gradients=[%1], momentum_buffers=%[])\n"
        "%0 : f32[4, 6] = shoal::all_gather_into(wholes=[%0], self=%2, axis=\"shard\")\n"
        "wait %0\n"
        "free %2\n"
        "return parameter \"w\" %0\n");
  // Columns are copied once, by the part itself.
  CHECK(text_of_a_part(1).find("clone") == std::string::npos);
  // What forward has read of it may be a view: a copy is changed.
  const std::string read =
      text_of_a_part(0, "%5 : f32[2, 6] = aten::neg(self=%2) @forward \"\"\n", ", output \"y\" %5");
  CHECK(read.find("%6 : f32[2, 6] = aten::clone(self=%2, memory_format=none)\n") != std::string::npos);
}

TEST_CASE("buffers that change places are copied from clones") {
  Graph graph;
  const auto a = graph.add_source(Role::Buffer, "a", f32({2}));
  const auto b = graph.add_source(Role::Buffer, "b", f32({2}));
  graph.add_result(Role::Buffer, "a", b);
  graph.add_result(Role::Buffer, "b", a);
  CHECK(to_text(lower(graph)) ==
        "source %0 buffer \"a\" : f32[2]\n"
        "source %1 buffer \"b\" : f32[2]\n"
        "forward:\n"
        "backward:\n"
        "update:\n"
        "%2 : f32[2] = aten::clone(self=%1, memory_format=none)\n"
        "%3 : f32[2] = aten::clone(self=%0, memory_format=none)\n"
        "copy %2 to %0\n"
        "free %2\n"
        "copy %3 to %1\n"
        "free %3\n"
        "return buffer \"a\" %0, buffer \"b\" %1\n");
}

TEST_CASE("the norm of the gradients is known before anything is committed") {
  Graph graph;
  const auto w = graph.add_source(Role::Parameter, "w", f32({2}));
  const auto g = unary(graph, "aten::cumsum", w);
  const auto clip = graph.add_node({.op = "shoal::clip",
                                    .arguments = {{"gradients", ir::ValueList{g}}, {"max_norm", 1.0}},
                                    .outputs = {},
                                    .phase = Phase::Update,
                                    .module = ""},
                                   {f32({}), f32({})});
  graph.add_result(Role::Output, "grad_norm", *graph.at(clip).outputs[0]);
  graph.add_result(Role::Parameter, "w", sgd(graph, w, g));
  const Program program = lower(graph);
  CHECK(std::get<Compute>(program.segments.at(1).instructions.at(0)).op == "shoal::clip");
  CHECK(std::get<Compute>(program.segments.at(2).instructions.at(0)).op == "shoal::sgd");
}

// Of a rank with the stages 0 and 2: what stage 1 sends back, and a buffer that stage `changes` makes anew of what it
// was, and stage `reads` looks at.
static Graph of_two_stages(int changes, int reads) {
  Graph graph;
  const auto w = graph.add_source(Role::Parameter, "w", f32({2}));
  const auto b = graph.add_source(Role::Buffer, "b", f32({2}));
  const auto in_stage = [&](ValueId value, int stage) {
    graph.nodes[graph.at(value).producer->index].stage = stage;
    return value;
  };
  std::vector<ValueId> read = {in_stage(unary(graph, "aten::cumsum", w), 0)};
  if (reads == 0) read.push_back(in_stage(unary(graph, "aten::cumsum", b), 0));
  ValueId made = read[0];
  if (changes == 0) made = in_stage(unary(graph, "aten::neg", read[0]), 0);
  const auto node = graph.add_node({.op = "shoal::receive",
                                    .arguments = {{"axis", "pipeline"}, {"from", std::int64_t{1}}},
                                    .outputs = {},
                                    .stage = 1},
                                   {f32({2})});
  const auto received = *graph.at(node).outputs[0];
  if (reads == 2) read.push_back(in_stage(unary(graph, "aten::cumsum", b), 2));
  const auto loss = in_stage(binary(graph, "aten::add.Tensor", received, read.back()), 2);
  if (changes == 2) made = in_stage(unary(graph, "aten::neg", loss), 2);
  const auto last = in_stage(unary(graph, "aten::cumsum", loss, Phase::Backward), 2);
  const auto first = in_stage(binary(graph, "aten::add.Tensor", last, read[0], Phase::Backward), 0);
  graph.add_result(Role::Loss, "loss", loss);
  graph.add_result(Role::Gradient, "w", first);
  graph.add_result(Role::Buffer, "b", made);
  return graph;
}

static std::string segments_of(const Program& program) {
  std::string text;
  for (const Segment& segment : program.segments) {
    text += std::string(ir::name_of(segment.phase)) + ' ' + std::to_string(segment.stage) + ':';
    for (const auto& instruction : segment.instructions) {
      if (const auto* compute = std::get_if<Compute>(&instruction)) text += ' ' + compute->op;
      if (std::holds_alternative<Copy>(instruction)) text += " copy";
    }
    text += '\n';
  }
  return text;
}

TEST_CASE("each stage of a rank has its segments, and what another one sends has that one's") {
  const Program program = lower(of_two_stages(2, 2), Buffers::AfterForward, 0, {0, 2});
  CHECK(segments_of(program) ==
        "forward 0: aten::cumsum\nforward 1: shoal::receive\n"
        "forward 2: aten::cumsum aten::add.Tensor aten::neg copy\n"
        "backward 2: aten::cumsum\nbackward 0: aten::add.Tensor\nupdate 2:\nupdate 0:\n");
  CHECK(from_text(to_text(program)) == program);
  // The buffer changes where it is read last.
  CHECK(segments_of(lower(of_two_stages(0, 2), Buffers::AfterForward, 0, {0, 2}))
            .find("cumsum aten::add.Tensor copy") != std::string::npos);
}

TEST_CASE("what a buffer was cannot be read where another micro-batch has run") {
  CHECK_THROWS_WITH_AS(
      lower(of_two_stages(2, 0), Buffers::AfterForward, 0, {0, 2}),
      doctest::Contains("stage 2 changes buffer b, and aten::cumsum in module m reads it in stage 0 of "
                        "the same rank"),
      Error);
}

TEST_CASE("a node that reads what a later stage makes is not lowered") {
  Graph graph = of_two_stages(2, 2);
  for (auto& node : graph.nodes)
    if (node.phase == Phase::Backward) node.stage = 2 - node.stage;
  CHECK_THROWS_WITH_AS(lower(graph, Buffers::AfterForward, 0, {0, 2}),
                       doctest::Contains("which a later segment makes"), Error);
}

// A graph of views, elementwise ops and others with a few results, drawn at random.
static Graph random_graph(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  Graph graph;
  std::vector<ValueId> values;
  for (int i = 0; i < 3; ++i)
    values.push_back(graph.add_source(i == 0 ? Role::Input : Role::Parameter, std::to_string(i), f32({4})));
  static constexpr const char* kUnary[] = {"aten::relu", "aten::view", "aten::cumsum", "aten::detach",
                                           "aten::neg"};
  for (int i = 0; i < 30; ++i) {
    const auto a = values[below(values.size())];
    if (below(3) == 0)
      values.push_back(binary(graph, "aten::add.Tensor", a, values[below(values.size())]));
    else
      values.push_back(unary(graph, kUnary[below(5)], a));
  }
  for (int i = 0; i < 3; ++i) graph.add_result(Role::Output, std::to_string(i), values[below(values.size())]);
  for (int i = 1; i < 3; ++i)
    graph.add_result(Role::Parameter, std::to_string(i),
                     sgd(graph, graph.sources[i].value, values[below(values.size())]));
  return graph;
}

TEST_CASE("every slot is filled before it is read, freed once, and never read after") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const Program program = lower(random_graph(seed));
    std::set<Slot> live;
    std::set<Slot> forever;
    std::set<Slot> freed;
    for (const auto& source : program.sources) forever.insert(source.slot);
    live = forever;
    bool right = true;
    for (const Segment& segment : program.segments)
      for (const auto& instruction : segment.instructions) {
        if (const auto* compute = std::get_if<Compute>(&instruction)) {
          for (const auto slot : ir::inputs_of({compute->op, compute->arguments, {}, {}, {}}))
            right = right && live.contains(slot);
          for (const auto& slot : compute->outputs)
            if (slot) live.insert(*slot);
          if (segment.phase != Phase::Update)
            for (const auto& slot : compute->outputs) right = right && !forever.contains(*slot);
        } else if (const auto* copy = std::get_if<Copy>(&instruction)) {
          right = right && live.contains(copy->from) && forever.contains(copy->to) &&
                  segment.phase == Phase::Update;
        } else {
          for (const auto slot : std::get<Free>(instruction).slots)
            right = right && live.erase(slot) == 1 && !forever.contains(slot) && freed.insert(slot).second;
        }
      }
    for (const auto& result : program.results) right = right && live.contains(result.slot);
    for (const auto slot : live)
      right = right && (forever.contains(slot) ||
                        std::ranges::find(program.results, slot, &Result::slot) != program.results.end());
    CHECK(right);
    CHECK(from_text(to_text(program)) == program);
  }
}
