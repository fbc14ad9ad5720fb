// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/precision.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/cleanup.h"
#include "shoal/rewrite/raised.h"

using namespace shoal;
using namespace shoal::rewrite;

static const Precision kBFloat16 = {.compute = DType::BFloat16};

static ir::Graph lowered(const std::string& text, const Precision& precision = kBFloat16,
                         bool emulates = false) {
  ir::Graph graph = in_precision(ir::from_text(text), precision, emulates);
  ir::verify(graph);
  return graph;
}

// "bf16 mm, f32 _softmax": what each node makes first, conversions and views left out.
static std::string made_by(const ir::Graph& graph) {
  std::string text;
  for (const ir::Node& node : graph.nodes) {
    if (node.op == "aten::_to_copy" || node.op == "aten::t") continue;
    text += (text.empty() ? "" : ", ") + std::string(name_of(graph.at(*node.outputs[0]).type.dtype)) + ' ' +
            node.op.substr(6);
  }
  return text;
}
static int conversions(const ir::Graph& graph) {
  return static_cast<int>(std::ranges::count(graph.nodes, "aten::_to_copy", &ir::Node::op));
}

static const char* const kLayer = R"(graph captured
%0 = input "x" : f32[4, 8]
%1 = parameter "w" : f32[16, 8]
%2 = parameter "v" : f32[8, 16]
%3 : f32[8, 16]{1,8} = aten::t(self=%1) @forward "up"
%4 : f32[4, 16] = aten::mm(self=%0, mat2=%3) @forward "up"
%5 : f32[4, 16] = aten::relu(self=%4) @forward
%6 : f32[16, 8]{1,16} = aten::t(self=%2) @forward "down"
%7 : f32[4, 8] = aten::mm(self=%5, mat2=%6) @forward "down"
%8 : f32[4, 8] = aten::add.Tensor(self=%0, other=%7, alpha=1) @forward
%9 : f32[4, 8] = aten::_softmax(self=%8, dim=-1, half_to_float=false) @forward
%10 : f32[4, 16] = aten::mm(self=%9, mat2=%2) @backward "down"
%11 : f32[4, 16] = aten::threshold_backward(grad_output=%10, self=%5, threshold=0) @backward
%12 : f32[4, 8] = aten::mm(self=%11, mat2=%1) @backward "up"
%13 : f32[16, 4]{1,16} = aten::t(self=%11) @backward "up"
%14 : f32[16, 8] = aten::mm(self=%13, mat2=%0) @backward "up"
return output "y" %9, gradient "w" %14, output "x.grad" %12
)";

TEST_CASE("products are bfloat16, what goes over elements is what it reads, the rest is float32") {
  const ir::Graph graph = lowered(kLayer);
  CHECK(made_by(graph) ==
        "bf16 mm, bf16 relu, bf16 mm, f32 add.Tensor, f32 _softmax, bf16 mm, bf16 threshold_backward, "
        "bf16 mm, bf16 mm");
}

TEST_CASE("sources and results keep their types") {
  const ir::Graph before = ir::from_text(kLayer), after = lowered(kLayer);
  REQUIRE(before.results.size() == after.results.size());
  for (std::size_t i = 0; i < before.results.size(); ++i) {
    CHECK(after.results[i].name == before.results[i].name);
    CHECK(after.at(after.results[i].value).type == before.at(before.results[i].value).type);
    CHECK(after.at(after.results[i].value).role == before.at(before.results[i].value).role);
  }
  CHECK(std::ranges::equal(before.sources, after.sources));
  const ir::Graph of_products = lowered(
      "graph captured\n%0 = input \"x\" : f32[1, 4]\n%1 = input \"y\" : f32[4, 1]\n"
      "%2 loss : f32[1, 1] = aten::mm(self=%0, mat2=%1) @forward\nreturn loss \"loss\" %2\n");
  CHECK(of_products.at(of_products.results[0].value).role == ir::Role::Loss);
  CHECK(of_products.at(of_products.results[0].value).type.dtype == DType::Float32);
}

TEST_CASE("a value is converted once for all that read it, a weight through its views and in backward too") {
  // x, w, v and softmax's output to bfloat16; the sum's other half and two results to float32
  CHECK(conversions(lowered(kLayer)) == 7);
}

TEST_CASE("a model of another dtype is what it was") {
  std::string text = kLayer;
  for (std::size_t at = 0; (at = text.find("f32", at)) != std::string::npos;) text.replace(at, 3, "f64");
  CHECK(lowered(text) == ir::from_text(text));
  CHECK(lowered(kLayer, {}) == ir::from_text(kLayer));
}

TEST_CASE("the table can be changed by name") {
  CHECK(made_by(lowered(kLayer,
                        {.compute = DType::BFloat16, .lower = {"aten::_softmax"}, .full = {"aten::relu"}}))
            .starts_with("bf16 mm, f32 relu, bf16 mm, f32 add.Tensor, bf16 _softmax"));
}

TEST_CASE("without fast kernels operands are rounded and multiplied in float32") {
  const ir::Graph graph = lowered(kLayer, kBFloat16, true);
  CHECK(made_by(graph).starts_with("f32 mm, bf16 relu, f32 mm, f32 add.Tensor"));
  for (const ir::Node& node : graph.nodes) {
    if (node.op != "aten::mm") continue;
    for (ir::ValueId input : ir::inputs_of(node)) {
      while (graph.at(*graph.at(input).producer).op == "aten::t")
        input = ir::inputs_of(graph.at(*graph.at(input).producer)).front();
      const ir::Node& widened = graph.at(*graph.at(input).producer);
      REQUIRE(widened.op == "aten::_to_copy");
      CHECK(graph.at(ir::inputs_of(widened).front()).type.dtype == DType::BFloat16);
    }
  }
}

TEST_CASE("a number that bfloat16 does not hold keeps its op in float32") {
  const auto filled = [](const std::string& number) {
    return made_by(
        lowered("graph captured\n%0 = input \"x\" : f32[4, 4]\n%1 = input \"m\" : bool[4, 4]\n"
                "%2 : f32[4, 4] = aten::mm(self=%0, mat2=%0) @forward\n"
                "%3 : f32[4, 4] = aten::masked_fill.Scalar(self=%2, mask=%1, value=" +
                number + ") @forward\nreturn output \"y\" %3\n"));
  };
  CHECK(filled("-1000.0") == "bf16 mm, bf16 masked_fill.Scalar");
  CHECK(filled("-3.4028234663852886e+38") == "bf16 mm, f32 masked_fill.Scalar");
  CHECK(filled("-inf") == "bf16 mm, bf16 masked_fill.Scalar");
}

TEST_CASE("an op that says a type itself, and what nobody has a word for, are float32") {
  CHECK(made_by(lowered(
            "graph captured\n%0 = input \"x\" : f32[4, 4]\n"
            "%1 : f32[4, 4] = aten::mm(self=%0, mat2=%0) @forward\n"
            "%2 : f32[4] = aten::sum.dim_IntList(self=%1, dim=[0], keepdim=false, dtype=f32) @forward\n"
            "%3 : f32[4, 4] = aten::mystery(self=%1) @forward\n"
            "return output \"y\" %2, output \"z\" %3\n")) == "bf16 mm, f32 sum.dim_IntList, f32 mystery");
}

TEST_CASE("a view is what it is a view of, and exact where it is seen as another type") {
  CHECK(made_by(lowered(
            "graph captured\n%0 = input \"x\" : f32[4, 4]\n"
            "%1 : f32[4, 4] = aten::mm(self=%0, mat2=%0) @forward\n"
            "%2 : f32[2, 4]{4,1} = aten::slice.Tensor(self=%1, dim=0, start=0, end=2, step=1) @forward\n"
            "%3 : f32[4]{5} = aten::diagonal(self=%1, offset=0, dim1=0, dim2=1) @forward\n"
            "%4 : c64[4, 2] = aten::view_as_complex(self=%1) @forward\n"
            "return output \"a\" %2, output \"b\" %3, output \"c\" %4\n")) ==
        "bf16 mm, bf16 slice.Tensor, bf16 diagonal, c64 view_as_complex");
}

TEST_CASE("attention is lowered, its mask and statistics are not, and gradients are added in float32") {
  const ir::Graph graph = lowered(R"(graph captured
%0 = input "q" : f32[1, 2, 4, 8]
%1 = input "mask" : f32[4, 4]
%2 : f32[1, 2, 4, 8], %3 : f32[1, 2, 4] = shoal::attention(query=%0, key=%0, value=%0, attn_mask=%1, is_causal=false, scale=none) @forward
%4 : f32[1, 2, 4, 8], %5 : f32[1, 2, 4, 8], %6 : f32[1, 2, 4, 8] = shoal::attention_backward(grad_output=%2, query=%0, key=%0, value=%0, output=%2, logsumexp=%3, attn_mask=%1, is_causal=false, scale=none) @backward
%7 : f32[1, 2, 4, 8] = aten::add.Tensor(self=%4, other=%5, alpha=1) @backward
return output "y" %2, output "g" %7
)");
  for (const ir::Node& node : graph.nodes) {
    const auto dtype_of = [&](std::string_view argument) {
      return graph.at(std::get<ir::ValueId>(*ir::find(node, argument))).type.dtype;
    };
    if (node.op == "aten::add.Tensor") CHECK(dtype_of("self") == DType::Float32);
    if (!node.op.starts_with("shoal::attention")) continue;
    CHECK(dtype_of("query") == DType::BFloat16);
    CHECK(dtype_of("attn_mask") == DType::Float32);
    CHECK(graph.at(*node.outputs[0]).type.dtype == DType::BFloat16);
    if (node.op == "shoal::attention") CHECK(graph.at(*node.outputs[1]).type.dtype == DType::Float32);
    if (node.op == "shoal::attention_backward") CHECK(dtype_of("logsumexp") == DType::Float32);
  }
}

TEST_CASE("a number that float16 does not hold keeps its op in float32") {
  const auto dtype_of = [](const std::string& number, DType compute) {
    const ir::Graph graph = lowered(
        "graph captured\n%0 = input \"x\" : f32[4, 4]\n%1 : f32[4, 4] = aten::mm(self=%0, mat2=%0) @forward\n"
        "%2 : f32[4, 4] = aten::clamp_min(self=%1, min=" +
            number + ") @forward\nreturn output \"y\" %2\n",
        {.compute = compute});
    const auto clamp = std::ranges::find(graph.nodes, "aten::clamp_min", &ir::Node::op);
    return graph.at(*clamp->outputs[0]).type.dtype;
  };
  CHECK(dtype_of("1e-12", DType::Float16) == DType::Float32);
  CHECK(dtype_of("1e-12", DType::BFloat16) == DType::BFloat16);
  CHECK(dtype_of("65505.0", DType::Float16) == DType::Float32);
  CHECK(dtype_of("65504.0", DType::Float16) == DType::Float16);
  CHECK(dtype_of("0.0", DType::Float16) == DType::Float16);
}

TEST_CASE("float16 scales its loss, and bfloat16 does not") {
  const std::string text = R"(graph captured
%0 = input "x" : f32[4, 4]
%1 = parameter "w" : f32[4, 4]
%2 : f32[4, 4] = aten::mm(self=%0, mat2=%1) @forward
%3 loss : f32[] = aten::sum(self=%2, dtype=none) @forward
%4 : f32[] = aten::ones_like(self=%3) @backward
%5 : f32[4, 4]{0,0} = aten::expand(self=%4, size=[4, 4], implicit=false) @backward
%6 : f32[4, 4] = aten::mm(self=%0, mat2=%5) @backward
return loss "loss" %3, gradient "w" %6
)";
  const auto scales = [&](DType compute) {
    const ir::Graph graph = lowered(text, {.compute = compute});
    CHECK(graph.at(graph.results[1].value).type.dtype == DType::Float32);
    return std::ranges::find(graph.sources, "loss_scale", &ir::Source::name) != graph.sources.end();
  };
  CHECK(scales(DType::Float16));
  CHECK_FALSE(scales(DType::BFloat16));
}

static const Precision kKahan = {.compute = DType::BFloat16, .master = Master::Kahan};

static std::string in_bfloat16(std::string text) {
  for (std::size_t at = 0; (at = text.find("f32[", at)) != std::string::npos; at += 5)
    text.replace(at, 4, "bf16[");
  return text;
}

TEST_CASE("a bfloat16 model without float32 copies runs as a float32 one, and products read its weights") {
  const ir::Graph graph = cleanup(lowered(in_bfloat16(kLayer), kKahan));
  CHECK(made_by(graph) == made_by(lowered(kLayer)));
  for (const ir::Node& node : graph.nodes)
    if (node.op == "aten::_to_copy") CHECK(graph.at(ir::inputs_of(node)[0]).role != ir::Role::Parameter);
  for (const auto& result : graph.results) {
    const bool is_gradient = result.role == ir::Role::Gradient;
    CHECK(graph.at(result.value).type.dtype == (is_gradient ? DType::Float32 : DType::BFloat16));
  }
  CHECK(made_by(cleanup(lowered(in_bfloat16(kLayer), kKahan, true))) ==
        made_by(lowered(kLayer, kBFloat16, true)));
}

TEST_CASE("a raised graph looks up rows first, and a model's own conversions are nothing") {
  const ir::Graph graph = cleanup(raised(ir::from_text(R"(graph captured
%0 = input "ids" : i64[4]
%1 = parameter "w" : bf16[16, 8]
%2 = parameter "norm" : bf16[8]
%3 : bf16[4, 8] = aten::embedding(weight=%1, indices=%0, padding_idx=-1, scale_grad_by_freq=false, sparse=false) @forward
%4 : f32[4, 8] = aten::_to_copy(self=%3, dtype=f32) @forward
%5 : f32[4, 8] = aten::exp(self=%4) @forward
%6 : bf16[4, 8] = aten::_to_copy(self=%5, dtype=bf16) @forward
%7 : bf16[4, 8] = aten::mul.Tensor(self=%6, other=%2) @forward
%8 loss : bf16[] = aten::sum(self=%7, dtype=bf16) @forward
return output "y" %7, loss "loss" %8
)")));
  ir::verify(graph);
  CHECK(made_by(graph) == "bf16 embedding, f32 exp, f32 mul.Tensor, f32 sum");
  CHECK(conversions(graph) == 3);  // rows, the norm, and y
  for (const auto& result : graph.results)
    CHECK(graph.at(result.value).type.dtype ==
          (result.role == ir::Role::Loss ? DType::Float32 : DType::BFloat16));
}
