// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/report.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/ir/flops.h"
#include "shoal/ir/text.h"
#include "shoal/rewrite/local_graph_test.h"

using namespace shoal;
using namespace shoal::rewrite;
using sharding::Layout;
using sharding::Mesh;
using sharding::Replicate;
using sharding::Shard;

// A matrix product, and its gradient.
static const char* const kStep = R"(graph captured
%0 = parameter "h.3.fc.weight" : f32[16, 10]
%1 = input "x" : f32[8, 16]
%2 : f32[8, 10] = aten::mm(self=%1, mat2=%0) @forward "h.3.fc"
%3 : f32[8, 10] = aten::relu(self=%2) @forward "h.3"
%4 : f32[16, 8]{1,16} = aten::t(self=%1) @backward "h.3.fc"
%5 : f32[16, 10] = aten::mm(self=%4, mat2=%3) @backward "h.3.fc"
return output "y" %3, gradient "h.3.fc.weight" %5
)";

static Placed placed_on(const Mesh& mesh, const Layout& input, const ParameterPins& weight) {
  return place(ir::from_text(kStep), mesh,
               {.parameters = {{"h.3.fc.weight", weight}}, .inputs = {{"x", input}}, .outputs = {}});
}

static const Mesh kData = {.axes = {{"replicate", 4}}};
static const Layout kWhole = {{Replicate{}}};
static const Layout kRows = {{Shard{.dim = 0}}};

static Placed data_parallel() {
  return placed_on(kData, kRows, {.kept = kWhole, .used = kWhole, .gradient = kWhole, .updated = kWhole});
}

TEST_CASE("a multiplication and an addition are two flops") {
  const ir::Graph graph = ir::from_text(kStep);
  CHECK(flops_of(graph, graph.nodes[0]) == 2 * 8 * 16 * 10);
  CHECK(flops_of(graph, graph.nodes[1]) == 0);
  CHECK(flops_of(graph, graph.nodes[3]) == 2 * 8 * 16 * 10);
}

TEST_CASE("attention and convolution count their products, backward its own") {
  const ir::Graph graph = ir::from_text(R"(graph captured
%0 = input "q" : f32[2, 4, 5, 8]
%1 = input "k" : f32[2, 4, 7, 8]
%2 = input "x" : f32[3, 6, 9, 9]
%3 = parameter "w" : f32[12, 2, 3, 3]
%4 : f32[2, 4, 5, 8], %5 : f32[2, 4, 5] = aten::_scaled_dot_product_flash_attention_for_cpu(query=%0, key=%1, value=%1, dropout_p=0.0, is_causal=false, attn_mask=none, scale=none) @forward
%6 : f32[3, 12, 7, 7] = aten::convolution(input=%2, weight=%3, bias=none, stride=[1, 1], padding=[0, 0], dilation=[1, 1], transposed=false, output_padding=[0, 0], groups=3) @forward
%7 : f32[3, 6, 9, 9], %8 : f32[12, 2, 3, 3], _ = aten::convolution_backward(grad_output=%6, input=%2, weight=%3, bias_sizes=none, stride=[1, 1], padding=[0, 0], dilation=[1, 1], transposed=false, output_padding=[0, 0], groups=3, output_mask=[true, true, false]) @backward
return output "y" %4
)");
  CHECK(flops_of(graph, graph.nodes[0]) == 2 * (2 * 4 * 5) * 7 * 16);
  CHECK(flops_of(graph, graph.nodes[1]) == 2 * (3 * 12 * 7 * 7) * (2 * 3 * 3));
  CHECK(flops_of(graph, graph.nodes[2]) == 2 * 2 * (3 * 12 * 7 * 7) * (2 * 3 * 3));
}

TEST_CASE(
    "fused attention is work, an op that goes over elements is none, and one of which nothing is said is "
    "named") {
  ir::Graph graph = ir::from_text(R"(graph captured
%0 = input "q" : f32[2, 4, 5, 8]
%1 = input "k" : f32[2, 2, 7, 8]
%2 : f32[2, 4, 5, 8], %3 : f32[2, 4, 5] = shoal::attention(query=%0, key=%1, value=%1, attn_mask=none, is_causal=false, scale=none) @forward
%4 : f32[2, 4, 5, 8], %5 : f32[2, 2, 7, 8], %6 : f32[2, 2, 7, 8] = shoal::attention_backward(grad_output=%2, query=%0, key=%1, value=%1, output=%2, logsumexp=%3, attn_mask=none, is_causal=false, scale=none) @backward
%7 : f32[2, 4, 5, 8] = aten::relu(self=%2) @forward
%8 : f32[2, 4, 5, 8] = mine::op(x=%7) @forward
return output "y" %8
)");
  constexpr double kForward = 2 * (2 * 4 * 5) * 7 * 16;
  CHECK(work_of(graph, graph.nodes[0]) == kForward);
  CHECK(work_of(graph, graph.nodes[1]) == 2.5 * kForward);
  CHECK(work_of(graph, graph.nodes[2]) == 0);
  CHECK(!work_of(graph, graph.nodes[3]));
  const Placed placed = place(std::move(graph), kData, {});
  CHECK(report_of(placed, local_graph(placed, 0), 0).unknown == std::vector<std::string>{"mine::op"});
}

TEST_CASE("data parallel runs split, and reduces each gradient once") {
  const Placed placed = data_parallel();
  const Report report = report_of(placed, local_graph(placed, 0), 0);
  REQUIRE(report.shares.size() == 1);
  CHECK(report.shares[0].flops == 1);
  CHECK(report.shares[0].parameter_bytes == 0);
  CHECK(report.whole.empty());
  REQUIRE(report.traffic.size() >= 1);
  const Traffic& gradients = report.traffic[0];
  CHECK(gradients.what == "gradients");
  CHECK(gradients.op == "all_reduce");
  CHECK(gradients.bytes == 2 * 16 * 10 * 4 * 3 / 4);
}

TEST_CASE("what is stored in parts is gathered for use, and its gradient scattered") {
  const Mesh mesh = {.axes = {{"shard", 4}}};
  const Placed placed =
      placed_on(mesh, kRows, {.kept = kRows, .used = kWhole, .gradient = kRows, .updated = kRows});
  const Report report = report_of(placed, local_graph(placed, 0), 0);
  CHECK(report.shares[0].parameter_bytes == 1);
  std::string said;
  for (const Traffic& traffic : report.traffic)
    said +=
        traffic.what + ' ' + traffic.op + ' ' + std::to_string(traffic.bytes) + ' ' + traffic.module + '\n';
  CHECK(said.find("parameters all_gather 480 h.*.fc\n") != std::string::npos);
  CHECK(said.find("gradients reduce_scatter 480 \n") != std::string::npos);
}

TEST_CASE("an op that runs whole though the batch is cut is named, with its work") {
  Placed placed = data_parallel();
  placed.nodes[0] = {.in = {kWhole, kWhole}, .out = {kWhole}};
  const Report report = report_of(placed, local_graph(data_parallel(), 0), 0);
  REQUIRE(report.whole.size() == 1);
  CHECK(report.whole[0] == WholeOp{.module = "h.*.fc",
                                   .op = "aten::mm",
                                   .axes = "replicate",
                                   .count = 1,
                                   .flops = 2 * 8 * 16 * 10,
                                   .bytes = 8 * 10 * 4});
  CHECK(report.shares[0].flops == 0.5);
}

TEST_CASE("a step sends what its micro-batches and the update do") {
  const auto sent = [](const char* what, std::int64_t count, std::int64_t bytes) {
    return Traffic{
        .module = "", .what = what, .op = "all_reduce", .axis = "shard", .count = count, .bytes = bytes};
  };
  Report microbatch, update;
  microbatch.traffic = {sent("activations", 2, 10), sent("gradients", 1, 100)};
  update.traffic = {sent("gradients", 1, 7), sent("norm", 1, 8)};
  CHECK(of_step(microbatch, 3, update).traffic ==
        std::vector<Traffic>{sent("activations", 6, 30), sent("gradients", 4, 307), sent("norm", 1, 8)});
}

TEST_CASE("layers whose paths differ in numbers alone are one line, which has the paths") {
  const Placed placed = place(ir::from_text(R"(graph captured
%0 = parameter "h.3.weight" : f32[16, 16]
%1 = parameter "h.12.weight" : f32[16, 16]
%2 = input "x" : f32[8, 16]
%3 : f32[8, 16] = aten::mm(self=%2, mat2=%0) @forward "h.3"
%4 : f32[8, 16] = aten::mm(self=%3, mat2=%1) @forward "h.12"
return output "y" %4
)"),
                              kData, {.parameters = {}, .inputs = {{"x", kRows}}, .outputs = {}});
  const Report report = report_of(placed, local_graph(placed, 0), 0);
  REQUIRE(report.layers.size() == 2);
  CHECK(report.layers[0].path == "h.*.weight");
  CHECK(report.layers[0].paths == std::vector<std::string>{"h.3.weight", "h.12.weight"});
  CHECK(report.layers[1].paths == std::vector<std::string>{"h.3", "h.12"});
}

TEST_CASE("ranks with equal shapes are of one kind") {
  const Mesh mesh = {.axes = {{"replicate", 3}}};  // 8 rows: 3, 3, 2
  const Placed placed =
      placed_on(mesh, kRows, {.kept = kWhole, .used = kWhole, .gradient = kWhole, .updated = kWhole});
  CHECK(rank_classes(placed) == std::vector<RankClass>{{.ranks = {0, 1}}, {.ranks = {2}}});
  CHECK(rank_classes(data_parallel()) == std::vector<RankClass>{{.ranks = {0, 1, 2, 3}}});
  const Report uneven = report_of(placed, local_graph(placed, 0), 0);
  CHECK(uneven.shares[0].busiest == doctest::Approx(3 / (8.0 / 3)));
  CHECK(to_text(mesh, uneven).find("the busiest rank has 1.12 of the mean work\n") != std::string::npos);
}

TEST_CASE("a report reads") {
  const Placed placed = data_parallel();
  const std::string text = to_text(placed.mesh, report_of(placed, local_graph(placed, 0), 0));
  CHECK(text.find("mesh: replicate=4, 4 ranks\n  along replicate    0 1 2 3\n") == 0);
  CHECK(text.find("h.*.fc.weight") != std::string::npos);
  CHECK(text.find("split along replicate 100.00 % of the flops") != std::string::npos);
  CHECK(text.find("ops that run whole along an axis that could cut them: none\n") != std::string::npos);
}
