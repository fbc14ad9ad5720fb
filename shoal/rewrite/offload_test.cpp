// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/offload.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/base/text.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

using namespace shoal;
using rewrite::Offload;

// %3 is read by forward alone, %5 by backward through a view, %7 is small, %9 is handed out too.
static const char* const kStep = R"(graph captured
%0 = parameter "w" : f32[4, 4]
%1 = parameter "b" : f32[4]
%2 = input "x" : f32[8, 4]
%3 : f32[8, 4] = aten::exp(self=%2) @forward "a"
%4 : f32[8, 4] = aten::tanh(self=%3) @forward "a"
%5 : f32[8, 4] = aten::mm(self=%4, mat2=%0) @forward "fc"
%6 : f32[4, 8]{1,4} = aten::t(self=%5) @forward "fc"
%7 : f32[4] = aten::exp(self=%1) @forward "fc"
%8 : f32[8, 4] = aten::mul.Tensor(self=%5, other=%7) @forward "fc"
%9 : f32[8, 4] = aten::tanh(self=%8) @forward "head"
%10 : f32[8, 4] = aten::tanh_backward(grad_output=%9, output=%9) @backward "head"
%11 : f32[4, 4] = aten::mm(self=%6, mat2=%10) @backward "fc"
%12 : f32[4] = aten::mul.Tensor(self=%7, other=%7) @backward "fc"
return loss "loss" %9, gradient "w" %11, gradient "b" %12
)";

static std::string offloaded(const Offload& what, const std::string& text = kStep) {
  const ir::Graph graph = rewrite::offload(ir::from_text(text), what);
  ir::verify(graph);
  std::string story;
  for (const auto& node : graph.nodes) {
    story += concat(node.op.substr(node.op.find("::") + 2), '(');
    for (const auto input : ir::inputs_of(node)) story += concat('%', input.index, ' ');
    story += ")\n";
  }
  for (const auto& result : graph.results) story += concat(result.name, " %", result.value.index, '\n');
  return story;
}

TEST_CASE("what backward reads lies in a file from where it is made, its views too") {
  CHECK(offloaded({.activations = true, .least = 100}) == R"(exp(%2 )
tanh(%3 )
mm(%4 %0 )
to_file(%5 )
t(%6 )
exp(%1 )
mul.Tensor(%6 %8 )
tanh(%9 )
tanh_backward(%10 %10 )
mm(%7 %11 )
mul.Tensor(%8 %8 )
loss %10
w %12
b %13
)");
}

TEST_CASE("what is smaller than the least stays in memory") {
  const std::string all = offloaded({.activations = true, .least = 1});
  CHECK(all.find("exp(%1 )\nto_file(%8 )\n") != std::string::npos);
  CHECK(offloaded({.activations = true, .least = 129}) == offloaded({}));
}

TEST_CASE("a gradient lies in a file until the update, and is handed out from there") {
  const std::string made = offloaded({.gradients = true, .least = 1});
  CHECK(made.find("mm(%6 %10 )\nto_file(%11 )\nmul.Tensor(%7 %7 )\nto_file(%13 )\nloss %9\nw %12\nb %14\n") !=
        std::string::npos);
}

TEST_CASE("a sum of gradients is a source's, and no copy of it is made") {
  const std::string text = R"(graph captured
%0 = parameter "w" : f32[4, 4]
%1 = gradient "w" : f32[4, 4]
%2 = scalar "keep" : f64[]
%3 = scalar "weight" : f64[]
%4 = scalar "divisor" : f64[]
%5 : f32[4, 4] = aten::exp(self=%0) @backward ""
%6 : f32[4, 4] = shoal::accumulate(sums=[%1], gradients=[%5], keep=%2, weight=%3, divisor=%4) @update ""
return gradient "w" %6
)";
  CHECK(offloaded({.gradients = true, .least = 1}, text) == offloaded({}, text));
}

TEST_CASE("sources go by what they are and how large") {
  const Offload offload = {.parameters = true, .gradients = true, .least = 64};
  const auto large = ir::contiguous(DType::Float32, {4, 4}), small = ir::contiguous(DType::Float32, {15});
  CHECK(offload.has(ir::Role::Parameter, large));
  CHECK(offload.has(ir::Role::Gradient, large));
  CHECK_FALSE(offload.has(ir::Role::Parameter, small));
  CHECK_FALSE(offload.has(ir::Role::OptimizerState, large));
  CHECK_FALSE(offload.has(ir::Role::Buffer, large));
}
