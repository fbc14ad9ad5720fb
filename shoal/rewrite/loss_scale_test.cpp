// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/loss_scale.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

using namespace shoal;
using namespace shoal::rewrite;

// A step whose gradient of w is what `backward` makes, %6, of that of the product, %5.
static std::string step(const std::string& backward) {
  return R"(graph captured
%0 = input "x" : f32[4]
%1 = parameter "w" : f32[4]
%2 : f32[4] = aten::mul.Tensor(self=%0, other=%1) @forward "m"
%3 loss : f32[] = aten::sum(self=%2, dtype=none) @forward "m"
%4 : f32[] = aten::ones_like(self=%3) @backward
%5 : f32[4] = aten::expand(self=%4, size=[4], implicit=false) @backward
)" + backward +
         "return loss \"loss\" %3, gradient \"w\" %6\n";
}
static const char* const kProduct = "%6 : f32[4] = aten::mul.Tensor(self=%5, other=%0) @backward \"m\"\n";

static ir::Graph scaled(const std::string& text) {
  ir::Graph graph = with_scaled_loss(ir::from_text(text));
  ir::verify(graph);
  return graph;
}

TEST_CASE("backward starts from the scale, and its results are divided by it") {
  const ir::Graph graph = scaled(step(kProduct));
  CHECK(ir::to_text(graph) == R"(graph captured
%0 = input "x" : f32[4]
%1 = parameter "w" : f32[4]
%5 = scalar "loss_scale" : f32[]
%2 : f32[4] = aten::mul.Tensor(self=%0, other=%1) @forward "m"
%3 loss : f32[] = aten::sum(self=%2, dtype=none) @forward "m"
%4 : f32[] = aten::ones_like(self=%3) @backward
%6 : f32[] = aten::mul.Tensor(self=%4, other=%5) @backward
%7 : f32[4] = aten::expand(self=%6, size=[4], implicit=false) @backward
%8 : f32[4] = aten::mul.Tensor(self=%7, other=%0) @backward "m"
%9 : f32[4] = aten::div.Tensor(self=%8, other=%5) @backward "m"
return loss "loss" %3,
       gradient "w" %9
)");
}

TEST_CASE("a graph without backward is what it was") {
  const ir::Graph graph = ir::from_text(
      "graph captured\n%0 = input \"x\" : f32[4]\n%1 : f32[4] = aten::relu(self=%0) @forward\n"
      "return output \"y\" %1\n");
  CHECK(with_scaled_loss(graph) == graph);
}

TEST_CASE("what is in proportion to a gradient is scaled with it, and what is not is refused by name") {
  for (const char* good : {"%6 : f32[4] = aten::abs(self=%5) @backward\n",
                           "%6 : f32[4] = aten::masked_fill.Scalar(self=%5, mask=%0, value=0) @backward\n",
                           "%6 : f32[4] = aten::where.self(condition=%0, self=%5, other=%5) @backward\n",
                           "%6 : f32[4] = aten::silu_backward(grad_output=%5, self=%0) @backward\n"})
    CHECK(error_of([&] { with_scaled_loss(ir::from_text(step(good))); }).empty());
  for (const char* bad :
       {"%6 : f32[4] = aten::clamp(self=%5, min=-1, max=1) @backward \"m\"\n",
        "%6 : f32[4] = aten::add.Tensor(self=%5, other=%1, alpha=1) @backward \"m\"\n",
        "%6 : f32[4] = aten::add.Scalar(self=%5, other=1, alpha=1) @backward \"m\"\n",
        "%6 : f32[4] = aten::mul.Tensor(self=%5, other=%5) @backward \"m\"\n",
        "%6 : f32[4] = aten::div.Tensor(self=%0, other=%5) @backward \"m\"\n",
        "%6 : f32[4] = aten::where.self(condition=%5, self=%0, other=%0) @backward \"m\"\n",
        "%6 : f32[4] = aten::masked_fill.Scalar(self=%5, mask=%0, value=3) @backward \"m\"\n",
        "%6 : f32[4] = aten::silu_backward(grad_output=%0, self=%5) @backward \"m\"\n"}) {
    CAPTURE(bad);
    const std::string error = error_of([&] { with_scaled_loss(ir::from_text(step(bad))); });
    CHECK(error.find("in backward of module \"m\" makes of a gradient what is not in proportion to it") !=
          std::string::npos);
  }
}

TEST_CASE("what is added to nothing is in proportion, too") {
  const std::string zeros = "%7 : f32[4] = aten::zeros_like(self=%5) @backward\n";
  const std::string sum = "%6 : f32[4] = aten::add.Tensor(self=%7, other=%5, alpha=1) @backward\n";
  const ir::Graph graph = scaled(step(zeros + sum));
  CHECK(std::ranges::count(graph.nodes, "aten::div.Tensor", &ir::Node::op) == 1);
  // A constant of zeros may be filled later.
  std::string with_constant = step(sum);
  with_constant.insert(with_constant.find("%2 :"), "%7 = constant \"c0\" : f32[4] fingerprint \"0\"\n");
  CHECK_FALSE(error_of([&] { with_scaled_loss(ir::from_text(with_constant)); }).empty());
  // And a sign is no multiple: it is not divided.
  const ir::Graph of_sign = scaled(step("%6 : f32[4] = aten::sign(self=%5) @backward\n"));
  CHECK(std::ranges::count(of_sign.nodes, "aten::div.Tensor", &ir::Node::op) == 0);
}
