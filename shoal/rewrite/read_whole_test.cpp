// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/read_whole.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

using namespace shoal;

static std::string whole(const std::string& text) {
  const ir::Graph made = rewrite::read_whole(ir::from_text(text), {"w", "b"});
  ir::verify(made);
  return ir::to_text(made);
}

TEST_CASE("what is multiplied is looked up whole, and its gradient is that of all rows") {
  CHECK(whole(R"(graph captured
%0 = parameter "w" : f32[3, 2, 2]
%1 = parameter "b" : f32[4]
%2 = input "x" : f32[3, 2, 2]
%3 : f32[3, 2, 2] = aten::mul.Tensor(self=%2, other=%0) @forward "top"
%4 : f32[3, 2, 2] = aten::mul.Tensor(self=%3, other=%0) @forward "top"
%5 : f32[4] = aten::neg(self=%1) @forward
%6 : f32[] = aten::sum(self=%4, dtype=none) @forward
%7 : f32[3, 2, 2] = aten::neg(self=%3) @backward "top"
return loss "loss" %6, output "y" %5, gradient "w" %7
)") == R"(graph captured
%0 = parameter "w" : f32[3, 4]
%1 = parameter "b" : f32[1, 4]
%2 = input "x" : f32[3, 2, 2]
%3 : i64[3] = aten::arange(end=3, dtype=i64, layout=none, device=none, pin_memory=none) @forward "top"
%4 : f32[3, 4] = aten::embedding(weight=%0, indices=%3, padding_idx=-1, scale_grad_by_freq=false, sparse=false) @forward "top"
%5 : f32[3, 2, 2] = aten::view(self=%4, size=[3, 2, 2]) @forward "top"
%6 : f32[3, 2, 2] = aten::mul.Tensor(self=%2, other=%5) @forward "top"
%7 : f32[3, 2, 2] = aten::mul.Tensor(self=%6, other=%5) @forward "top"
%8 : i64[1] = aten::arange(end=1, dtype=i64, layout=none, device=none, pin_memory=none) @forward
%9 : f32[1, 4] = aten::embedding(weight=%1, indices=%8, padding_idx=-1, scale_grad_by_freq=false, sparse=false) @forward
%10 : f32[4] = aten::view(self=%9, size=[4]) @forward
%11 : f32[4] = aten::neg(self=%10) @forward
%12 : f32[] = aten::sum(self=%7, dtype=none) @forward
%13 : f32[3, 2, 2] = aten::neg(self=%6) @backward "top"
%14 : f32[3, 4] = aten::embedding_dense_backward(grad_output=%13, indices=%3, num_weights=3, padding_idx=-1, scale_grad_by_freq=false) @backward "top"
return loss "loss" %12,
       output "y" %11,
       gradient "w" %14
)");
}

TEST_CASE("what lookups alone read stays as it is") {
  const std::string text = R"(graph captured
%0 = parameter "w" : f32[1000, 4]
%1 = input "a" : i64[8]
%2 : f32[8, 4] = aten::embedding(weight=%0, indices=%1, padding_idx=-1, scale_grad_by_freq=false, sparse=false) @forward "emb"
return output "y" %2
)";
  CHECK(whole(text) == text);
}

TEST_CASE("what cannot be read whole is refused by name") {
  const auto refused = [](const std::string& type) {
    return error_of([&] {
      whole("graph captured\n%0 = parameter \"w\" : " + type +
            "\n%1 : f32[] = aten::sum(self=%0, dtype=none) @forward \"norm\"\nreturn output \"y\" %1\n");
    });
  };
  CHECK(refused("f32[2000000, 4]") ==
        "tables: parameter w has 2000000 rows, and aten::sum in module \"norm\" reads them all. Remedy: "
        "leave it out of "
        "the tables, or look its rows up by embedding alone");
  CHECK(refused("f32[4, 4]{1, 4}") ==
        "tables: parameter w is not contiguous, and rows are. Remedy: a contiguous parameter, or leave it "
        "out of the "
        "tables");
}
