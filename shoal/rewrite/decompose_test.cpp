// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/decompose.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

using namespace shoal;
using namespace shoal::rewrite;

static std::string decomposed(const std::string& text, std::uint32_t node = 0) {
  ir::Graph graph = decompose(ir::from_text(text), {ir::NodeId{node}});
  ir::verify(graph);
  return ir::to_text(graph);
}

static const char* const kMean = R"(graph captured
%0 = input "x" : f32[8, 12]
%1 : f32[] = aten::mean(self=%0, dtype=none) @forward "head"
%2 : f32[] = aten::neg(self=%1) @forward
return output "y" %2
)";

TEST_CASE("a mean is a sum divided by the count of the whole") {
  CHECK(decomposed(kMean) == R"(graph captured
%0 = input "x" : f32[8, 12]
%1 : f32[] = aten::sum.dim_IntList(self=%0, dim=[], keepdim=false, dtype=none) @forward "head"
%2 : f32[] = aten::div.Scalar(self=%1, other=96.0) @forward "head"
%3 : f32[] = aten::neg(self=%2) @forward
return output "y" %3
)");
}

TEST_CASE("a mean of few digits is summed in float") {
  CHECK(decomposed(R"(graph captured
%0 = input "x" : bf16[8, 12]
%1 : bf16[8] = aten::mean.dim(self=%0, dim=[-1], keepdim=false, dtype=none) @forward
return output "y" %1
)") == R"(graph captured
%0 = input "x" : bf16[8, 12]
%1 : f32[8, 12] = aten::_to_copy(self=%0, dtype=f32, layout=none, device=none, pin_memory=none, non_blocking=false, memory_format=none) @forward
%2 : f32[8] = aten::sum.dim_IntList(self=%1, dim=[-1], keepdim=false, dtype=none) @forward
%3 : f32[8] = aten::div.Scalar(self=%2, other=12.0) @forward
%4 : bf16[8] = aten::_to_copy(self=%3, dtype=bf16, layout=none, device=none, pin_memory=none, non_blocking=false, memory_format=none) @forward
return output "y" %4
)");
}

TEST_CASE("the mean of a loss is its sum over the weight of the targets that are not ignored") {
  CHECK(decomposed(R"(graph captured
%0 = input "x" : f32[8, 10]
%1 = input "y" : i64[8]
%2 loss : f32[], %3 : f32[] = aten::nll_loss_forward(self=%0, target=%1, weight=none, reduction=1, ignore_index=-100) @forward
return loss "loss" %2
)") == R"(graph captured
%0 = input "x" : f32[8, 10]
%1 = input "y" : i64[8]
%2 : f32[], %3 : f32[] = aten::nll_loss_forward(self=%0, target=%1, weight=none, reduction=2, ignore_index=-100) @forward
%4 loss : f32[] = aten::div.Tensor(self=%2, other=%3) @forward
return loss "loss" %4
)");
}

TEST_CASE("what a backward node becomes is backward, and of its module") {
  const std::string text = decomposed(R"(graph captured
%0 = input "x" : f32[8, 10]
%1 = input "g" : f32[]
%2 : f32[8, 10] = aten::mse_loss_backward(grad_output=%1, self=%0, target=%0, reduction=1) @backward "head"
return output "y" %2
)");
  CHECK(text == R"(graph captured
%0 = input "x" : f32[8, 10]
%1 = input "g" : f32[]
%2 : f32[] = aten::div.Scalar(self=%1, other=80.0) @backward "head"
%3 : f32[8, 10] = aten::mse_loss_backward(grad_output=%2, self=%0, target=%0, reduction=2) @backward "head"
return output "y" %3
)");
}

TEST_CASE("only what needs the batch whole is decomposed") {
  const auto can = [](const std::string& node) {
    const ir::Graph graph =
        ir::from_text("graph captured\n%0 = input \"x\" : f32[8, 10]\n%1 = input \"w\" : f32[10]\n" + node +
                      " @forward\nreturn\n");
    return can_decompose(graph, graph.nodes[0]);
  };
  const std::string norm =
      "%2 : f32[8, 10], %3 : f32[10], %4 : f32[10] = aten::native_batch_norm(input=%0, weight=%1, bias=%1, ";
  CHECK(can("%2 : f32[] = aten::mse_loss(self=%0, target=%0, reduction=1)"));
  CHECK_FALSE(can("%2 : f32[] = aten::mse_loss(self=%0, target=%0, reduction=2)"));
  CHECK_FALSE(can("%2 : f32[] = aten::mse_loss(self=%0, target=%1, reduction=1)"));
  CHECK(can(norm + "running_mean=none, running_var=none, training=true, momentum=0.1, eps=1e-05)"));
  CHECK_FALSE(can(norm + "running_mean=%1, running_var=%1, training=false, momentum=0.1, eps=1e-05)"));
  CHECK_FALSE(can("%2 : f32[8, 10] = aten::relu(self=%0)"));
}

TEST_CASE("a node without simpler ops is an error") {
  CHECK_THROWS_WITH_AS(decompose(ir::from_text(kMean), {ir::NodeId{1}}),
                       "decompose: no simpler ops for aten::neg", Error);
}
