// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/shared_heads.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

using namespace shoal;
using namespace shoal::rewrite;

// Eight heads of queries share two of keys and values.
static const std::string kShared = R"(graph captured
%0 = input "q" : f32[3, 8, 5, 4]
%1 = input "k" : f32[3, 2, 5, 4]{40, 4, 8, 1}
%2 = input "v" : f32[3, 2, 5, 4]
%3 = input "g" : f32[3, 8, 5, 4]
%4 : f32[3, 8, 5, 4]{160, 4, 32, 1}, %5 : f32[3, 8, 5] = shoal::attention(query=%0, key=%1, value=%2, attn_mask=none, is_causal=true, scale=none) @forward "attn"
%6 : f32[3, 8, 5, 4]{160, 4, 32, 1}, %7 : f32[3, 2, 5, 4]{40, 4, 8, 1}, %8 : f32[3, 2, 5, 4] = shoal::attention_backward(grad_output=%3, query=%0, key=%1, value=%2, output=%4, logsumexp=%5, attn_mask=none, is_causal=true, scale=none) @backward "attn"
return output "q" %6, output "k" %7, output "v" %8
)";

TEST_CASE("heads of keys and values are repeated, and the gradients of the copies summed") {
  const ir::Graph graph = with_heads(ir::from_text(kShared), {{ir::NodeId{0}, 4}, {ir::NodeId{1}, 4}});
  ir::verify(graph);
  CHECK(ir::to_text(graph) == R"(graph captured
%0 = input "q" : f32[3, 8, 5, 4]
%1 = input "k" : f32[3, 2, 5, 4]{40,4,8,1}
%2 = input "v" : f32[3, 2, 5, 4]
%3 = input "g" : f32[3, 8, 5, 4]
%4 : f32[3, 2, 1, 5, 4]{40,4,40,8,1} = aten::unsqueeze(self=%1, dim=2) @forward "attn"
%5 : f32[3, 2, 2, 5, 4] = aten::repeat(self=%4, repeats=[1, 1, 2, 1, 1]) @forward "attn"
%6 : f32[3, 4, 5, 4] = aten::view(self=%5, size=[3, 4, 5, 4]) @forward "attn"
%7 : f32[3, 2, 1, 5, 4] = aten::unsqueeze(self=%2, dim=2) @forward "attn"
%8 : f32[3, 2, 2, 5, 4] = aten::repeat(self=%7, repeats=[1, 1, 2, 1, 1]) @forward "attn"
%9 : f32[3, 4, 5, 4] = aten::view(self=%8, size=[3, 4, 5, 4]) @forward "attn"
%10 : f32[3, 8, 5, 4]{160,4,32,1}, %11 : f32[3, 8, 5] = shoal::attention(query=%0, key=%6, value=%9, attn_mask=none, is_causal=true, scale=none) @forward "attn"
%12 : f32[3, 2, 1, 5, 4]{40,4,40,8,1} = aten::unsqueeze(self=%1, dim=2) @backward "attn"
%13 : f32[3, 2, 2, 5, 4] = aten::repeat(self=%12, repeats=[1, 1, 2, 1, 1]) @backward "attn"
%14 : f32[3, 4, 5, 4] = aten::view(self=%13, size=[3, 4, 5, 4]) @backward "attn"
%15 : f32[3, 2, 1, 5, 4] = aten::unsqueeze(self=%2, dim=2) @backward "attn"
%16 : f32[3, 2, 2, 5, 4] = aten::repeat(self=%15, repeats=[1, 1, 2, 1, 1]) @backward "attn"
%17 : f32[3, 4, 5, 4] = aten::view(self=%16, size=[3, 4, 5, 4]) @backward "attn"
%18 : f32[3, 8, 5, 4]{160,4,32,1}, %19 : f32[3, 4, 5, 4]{80,4,16,1}, %20 : f32[3, 4, 5, 4] = shoal::attention_backward(grad_output=%3, query=%0, key=%14, value=%17, output=%10, logsumexp=%11, attn_mask=none, is_causal=true, scale=none) @backward "attn"
%21 : f32[3, 5, 4, 4] = aten::transpose.int(self=%19, dim0=1, dim1=2) @backward "attn"
%22 : f32[3, 5, 2, 2, 4] = aten::view(self=%21, size=[3, 5, 2, 2, 4]) @backward "attn"
%23 : f32[3, 5, 2, 4] = aten::sum.dim_IntList(self=%22, dim=[3], keepdim=false, dtype=none) @backward "attn"
%24 : f32[3, 2, 5, 4]{40,4,8,1} = aten::transpose.int(self=%23, dim0=1, dim1=2) @backward "attn"
%25 : f32[3, 2, 2, 5, 4] = aten::view(self=%20, size=[3, 2, 2, 5, 4]) @backward "attn"
%26 : f32[3, 2, 5, 4] = aten::sum.dim_IntList(self=%25, dim=[2], keepdim=false, dtype=none) @backward "attn"
return output "q" %18,
       output "k" %24,
       output "v" %26
)");
}

TEST_CASE("as many heads as the ranks have to have one each") {
  const ir::Graph graph = ir::from_text(kShared);
  const auto heads = [&](std::int64_t ranks) { return heads_for(graph, graph.nodes[0], ranks); };
  CHECK(heads(1) == 0);
  CHECK(heads(2) == 0);
  CHECK(heads(3) == 0);  // the queries' heads do not divide
  CHECK(heads(4) == 4);
  CHECK(heads(8) == 8);
  CHECK(heads(16) == 0);
  CHECK(heads_for(graph, graph.nodes[1], 4) == 4);
  const ir::Graph six = ir::from_text(R"(graph captured
%0 = input "q" : f32[3, 12, 5, 4]
%1 = input "k" : f32[3, 6, 5, 4]
%2 : f32[3, 12, 5, 4], %3 : f32[3, 12, 5] = shoal::attention(query=%0, key=%1, value=%1, attn_mask=none, is_causal=true, scale=none) @forward
return output "y" %2
)");
  CHECK(heads_for(six, six.nodes[0], 4) == 12);
}

TEST_CASE("only attention has heads") {
  CHECK_THROWS_WITH_AS(with_heads(ir::from_text(R"(graph captured
%0 = input "x" : f32[8]
%1 : f32[8] = aten::neg(self=%0) @forward
return output "y" %1
)"),
                                  {{ir::NodeId{0}, 4}}),
                       "with_heads: aten::neg is no attention", Error);
}
