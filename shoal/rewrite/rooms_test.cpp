// SPDX-License-Identifier: Apache-2.0
// The rooms of place and partition, each by itself: what they say, as text.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/rewrite/candidates.h"
#include "shoal/rewrite/gathered.h"
#include "shoal/rewrite/local.h"
#include "shoal/rewrite/norms.h"
#include "shoal/rewrite/pinned.h"

using namespace shoal;
using namespace shoal::rewrite;
using sharding::layout_from_text;
using sharding::Mesh;
using sharding::mesh_from_text;
using sharding::Placement;

namespace {

Placement placement(const std::string& text) { return layout_from_text("[" + text + "]").placements[0]; }

// "S(0) R -> S(0)", a line each, sorted: the choices of the graph's first node on the mesh's outermost axis.
std::string choices(const std::string& graph_text, const Mesh& mesh, const std::vector<std::string>& seen,
                    const std::vector<std::string>& in, const std::vector<std::string>& out) {
  const ir::Graph graph = ir::from_text(graph_text);
  PlacedNode placed;
  for (const auto& text : in) placed.in.push_back(layout_from_text(text));
  for (const auto& text : out) placed.out.push_back(layout_from_text(text));
  std::vector<Placement> now;
  for (const auto& text : seen) now.push_back(placement(text));
  const Candidates candidates(graph, mesh);
  std::vector<std::string> lines;
  for (const Choice& choice : candidates.choices(graph.nodes[0], 0, now, placed)) {
    if (!candidates.fits(choice, graph.nodes[0], 0, placed)) continue;
    std::string line;
    for (const auto& each : choice.in) line += to_text(each) + " ";
    line += "->";
    for (const auto& each : choice.out) line += " " + to_text(each);
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(line);
  }
  std::ranges::sort(lines);
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

// The nodes of a graph, without phase and module.
std::string nodes_of(const ir::Graph& graph) {
  std::string text = to_text(graph), nodes;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    if (line.find("::") != std::string::npos) nodes += line.substr(0, line.find(" @")) + '\n';
  }
  return nodes;
}

const char* const kProduct = R"(graph captured
%0 = input "x" : f32[8, 4]
%1 = parameter "w" : f32[4, 6]
%2 : f32[8, 6] = aten::mm(self=%0, mat2=%1) @forward ""
return output "y" %2
)";

}  // namespace

TEST_CASE("candidates: a matrix product is cut by rows, by columns, or along what both share") {
  CHECK(choices(kProduct, mesh_from_text("tensor=2"), {"S(0)", "R"}, {"[R]", "[R]"}, {"[R]"}) ==
        "P(sum) R -> P(sum)\nR P(sum) -> P(sum)\nR S(1) -> S(1)\nS(0) R -> S(0)\nS(1) S(0) -> P(sum)\n");
}

TEST_CASE("candidates: a view takes the cut of its input, in units of what it joins") {
  const char* const view = R"(graph captured
%0 = input "x" : f32[6, 4, 2]
%1 : f32[24, 2] = aten::view(self=%0, size=[24, 2]) @forward ""
return output "y" %1
)";
  CHECK(choices(view, mesh_from_text("data=2"), {"S(0)"}, {"[R]"}, {"[R]"}).find("S(0) -> S(0, unit=4)\n") !=
        std::string::npos);
  // The axis further in has cut dim 1 of the input, which is blocks of the output.
  const std::string inner =
      choices(view, mesh_from_text("data=2 tensor=2"), {"S(0)"}, {"[R, S(1)]"}, {"[R, S(0, outer=6)]"});
  CHECK(inner.find("S(0) -> S(0, unit=2)\n") != std::string::npos);
}

TEST_CASE("candidates: parts of a split are blocks of what is split") {
  const char* const split = R"(graph captured
%0 = input "x" : f32[2, 12]
%1 : f32[2, 4], %2 : f32[2, 4], %3 : f32[2, 4] = aten::split.Tensor(self=%0, split_size=4, dim=1) @forward ""
return output "y" %1
)";
  CHECK(choices(split, mesh_from_text("tensor=2"), {"S(1, outer=3)"}, {"[R]"}, {"[R]", "[R]", "[R]"})
            .find("S(1, outer=3) -> S(1) S(1) S(1)\n") != std::string::npos);
}

TEST_CASE("pins: sources and results lie as they are kept, a number of an optimizer's is whole") {
  const ir::Graph graph = ir::from_text(R"(graph captured
%0 = parameter "w" : f32[4, 6]
%1 = state "w.exp_avg" : f32[4, 6]
%2 = state "w.mu" : f32[]
%3 = input "x" : f32[8, 4]
%4 : f32[8, 6] = aten::mm(self=%3, mat2=%0) @forward "fc"
%5 : f32[48] = aten::view(self=%4, size=[48]) @forward ""
return output "y" %5
)");
  const Mesh mesh = mesh_from_text("shard=2");
  const auto layout = [](const char* text) { return layout_from_text(text); };
  Pins pins = {.parameters = {{"w",
                               {.kept = layout("[S(0)]"),
                                .used = layout("[R]"),
                                .gradient = layout("[S(0)]"),
                                .updated = layout("[S(0)]")}}},
               .inputs = {{"x", layout("[S(0)]")}},
               .outputs = {{.module = "fc", .placements = {{0, placement("R")}}}}};
  const Pinned pinned = pinned_of(graph, mesh, pins, uses_of(graph));
  const auto text = [](const std::vector<sharding::Layout>& layouts) {
    std::string all;
    for (const auto& each : layouts) all += to_text(each);
    return all;
  };
  CHECK(text(pinned.kept) == "[S(0)][S(0)][R][S(0)]");
  CHECK(text(pinned.used) == "[R][S(0)][R][S(0)]");
  // The view that the module's only reader makes is what it hands on.
  REQUIRE(pinned.values.size() == 1);
  CHECK(pinned.values.begin()->first == ir::ValueId{5});
  pins.outputs[0].module = "none";
  CHECK(error_of([&] {
          pinned_of(graph, mesh, pins, uses_of(graph));
        }).find("no module is called \"none\"") != std::string::npos);
}

TEST_CASE("gathered: a parameter that is kept in parts, and views of it") {
  Placed placed = {.mesh = mesh_from_text("shard=2"), .graph = ir::from_text(R"(graph captured
%0 = parameter "a" : f32[4, 4]
%1 = parameter "b" : f32[4, 4]
%2 = parameter "c" : f32[4, 4]
%3 : f32[4, 4]{1,4} = aten::t(self=%1) @forward ""
%4 : f32[4, 4] = aten::mm(self=%2, mat2=%3) @forward ""
%5 : f32[4, 4] = aten::mm(self=%4, mat2=%0) @forward ""
%6 : f32[4, 4] = aten::mm(self=%0, mat2=%3) @backward ""
return output "y" %5, gradient "a" %6
)")};
  const auto cut = layout_from_text("[S(0)]"), whole = layout_from_text("[R]");
  placed.kept = {cut, cut, whole};
  placed.values = {whole, whole, whole, whole, whole, whole, whole};
  const Gathered gathered = gathered_of(placed);
  CHECK(gathered.values == std::vector<bool>{true, true, false, true, false, false, false});
}

TEST_CASE("local: a part keeps the order of dims, and what is expanded stays so") {
  const Mesh mesh = mesh_from_text("data=3");
  const auto type = [&](const ir::TensorType& whole, const char* layout, int rank) {
    return ir::to_text(local_type({mesh, rank}, layout_from_text(layout), whole));
  };
  CHECK(type({DType::Float32, {8, 6}, {1, 8}}, "[S(0)]", 2) == "f32[2, 6]{1,2}");
  CHECK(type({DType::Float32, {8, 6}, {0, 1}}, "[S(0)]", 0) == "f32[3, 6]{0,1}");
  CHECK(type({DType::Float32, {8, 6}, {6, 1}}, "[R]", 0) == "f32[8, 6]");
  // A column of six, and columns 1 to 4 of six: the gaps are those of what is cut.
  CHECK(type({DType::Float32, {9}, {6}}, "[S(0)]", 0) == "f32[3]{6}");
  CHECK(type({DType::Float32, {9, 4}, {6, 1}}, "[S(0)]", 0) == "f32[3, 4]{6,1}");
  CHECK(type({DType::Float32, {2, 9, 3}, {54, 6, 2}}, "[S(1)]", 0) == "f32[2, 3, 3]{18,6,2}");
}

TEST_CASE("local: what an LSTM keeps is as much as it has samples, in pages") {
  const ir::Graph graph = ir::from_text(R"(graph captured
%0 = input "x" : f32[7, 6, 8]
%1 : f32[7, 6, 4], %2 : f32[6, 4], %3 : f32[6, 4], %4 : u8[12288] = aten::mkldnn_rnn_layer(input=%0, hidden_size=4) @forward
return output "y" %1
)");
  std::vector<std::optional<ir::TensorType>> types(4, graph.at(ir::ValueId{4}).type);
  const auto reserve = [&](sharding::Range samples) {
    auto local = types;
    fit_reserve(graph, graph.nodes[0], {{.dims = {{{0, 7}}, {samples}, {{0, 8}}}}}, local);
    return local[3]->shape[0];
  };
  CHECK(reserve({0, 6}) == 12288);
  CHECK(reserve({0, 4}) == 8192);
  CHECK(reserve({0, 1}) == 4096);
  CHECK(reserve({0, 0}) == 0);
}

TEST_CASE("local: two ways to say one cut are the same parts; summands are not") {
  const Mesh mesh = mesh_from_text("data=2");
  const auto same = [&](const char* a, const char* b) {
    return same_parts(mesh, layout_from_text(a), layout_from_text(b), {8});
  };
  CHECK(same("[S(0)]", "[S(0, unit=4)]"));
  CHECK(!same("[S(0)]", "[S(0, outer=2)]"));
  CHECK(!same("[P(sum)]", "[R]"));
}

TEST_CASE("local: what sends nothing is a part, or the first rank's") {
  const Mesh mesh = mesh_from_text("data=2");
  const auto node = [&](const char* from, const char* to, int rank) {
    ir::Graph graph;
    const auto self = graph.add_source(ir::Role::Input, "x", ir::contiguous(DType::Float32, {4}));
    const auto steps = redistribution(mesh, {4}, 4, layout_from_text(from), layout_from_text(to));
    graph.add_node(kept_part({mesh, rank}, steps.at(0), self), {ir::contiguous(DType::Float32, {2})});
    return nodes_of(graph);
  };
  CHECK(node("[R]", "[S(0)]", 1) ==
        "%1 : f32[2] = shoal::part(self=%0, dim=0, outer=1, unit=1, index=1, count=2)\n");
  CHECK(node("[R]", "[P(sum)]", 0) == "%1 : f32[2] = aten::alias(self=%0)\n");
  CHECK(node("[R]", "[P(sum)]", 1).find("aten::full_like(self=%0, fill_value=0.0") != std::string::npos);
}

TEST_CASE("norms: squares are summed along what cuts a gradient, and along nothing else") {
  const Mesh mesh = mesh_from_text("shard=2 tensor=2");
  ir::Graph graph;
  std::vector<ir::ValueId> gradients;
  for (const char* name : {"a", "b", "c"})
    gradients.push_back(graph.add_source(ir::Role::Input, name, ir::contiguous(DType::Float32, {4})));
  const ir::Node clip = {.op = "shoal::clip",
                         .arguments = {{"gradients", ir::ValueList{}}, {"max_norm", 1.0}}};
  add_clip(graph, {mesh, 0}, clip, gradients,
           {layout_from_text("[R, R]"), layout_from_text("[S(0), S(0)]"), layout_from_text("[S(0), R]")},
           ir::contiguous(DType::Float32, {}));
  CHECK(nodes_of(graph) == R"(%3 : f64[] = shoal::sum_of_squares(gradients=[%0])
%4 : f64[] = shoal::sum_of_squares(gradients=[%2])
%5 : f64[] = shoal::all_reduce(self=%4, axis="shard", combine="sum")
%6 : f64[] = shoal::sum_of_squares(gradients=[%1])
%7 : f64[] = shoal::all_reduce(self=%6, axis="shard", combine="sum")
%8 : f64[] = shoal::all_reduce(self=%7, axis="tensor", combine="sum")
%9 : f32[], %10 : f32[] = shoal::clip_by(squares=[%3, %5, %8], max_norm=1.0, dtype=f32)
)");
}

TEST_CASE("norms: of what an axis does not cut, LAMB's first rank speaks for all") {
  const Mesh mesh = mesh_from_text("shard=2");
  const auto nodes = [&](int rank) {
    ir::Graph graph;
    const auto type = ir::contiguous(DType::Float32, {4});
    const auto list = [&](const std::string& name) {
      return ir::ValueList{graph.add_source(ir::Role::Input, name + "0", type),
                           graph.add_source(ir::Role::Input, name + "1", type)};
    };
    ir::Node lamb = {.op = "shoal::lamb",
                     .arguments = {{"parameters", list("p")},
                                   {"gradients", list("g")},
                                   {"exp_avgs", list("m")},
                                   {"exp_avg_sqs", list("v")}},
                     .phase = ir::Phase::Update};
    const auto cut = layout_from_text("[S(0)]"), whole = layout_from_text("[R]");
    add_lamb(graph, {mesh, rank}, std::move(lamb), {cut, whole},
             std::vector<std::optional<ir::TensorType>>(6, type));
    return nodes_of(graph);
  };
  CHECK(nodes(0).find("adds=[1, 1]") != std::string::npos);
  CHECK(nodes(1).find("adds=[1, 0]") != std::string::npos);
  CHECK(nodes(1).find("%15 : f64[4] = shoal::all_reduce(self=%14, axis=\"shard\", combine=\"sum\")\n") !=
        std::string::npos);
  CHECK(nodes(1).find("shoal::lamb_step(parameters=[%8, %9], exp_avgs=[%10, %11], exp_avg_sqs=[%12, %13], "
                      "norms=%15)") != std::string::npos);
}
