// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/views.h"

#include <doctest/doctest.h>

#include "shoal/ir/text.h"

using namespace shoal::ir;

TEST_CASE("views are known by name whatever their overload, and other libraries' ops are taken for views") {
  CHECK(is_view("aten::transpose.int"));
  CHECK(is_view("aten::t"));
  CHECK(is_view("torchvision::nms"));
  CHECK_FALSE(is_view("aten::tanh"));
  CHECK_FALSE(is_view("shoal::bernoulli"));
}

TEST_CASE("memory is owned by what is below all views") {
  const Graph graph = from_text(
      "graph captured %0 = input \"x\" : f32[4]\n"
      "%1 : f32[2, 2] = aten::view(self=%0, size=[2, 2]) @forward\n"
      "%2 : f32[2], %3 : f32[2] = aten::unbind.int(self=%1, dim=0) @forward\n"
      "%4 : f32[2] = aten::add.Tensor(self=%2, other=%3) @forward\n"
      "return");
  CHECK(memory_owners(graph) == std::vector<ValueId>{{0}, {0}, {0}, {0}, {4}});
}
