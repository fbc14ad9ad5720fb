// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/graph.h"

#include <doctest/doctest.h>

using namespace shoal;
using namespace shoal::ir;

TEST_CASE("a tensor type is contiguous whatever the stride of a dim of size one") {
  CHECK(is_contiguous({DType::Float32, {2, 1, 3}, {3, 99, 1}}));
  CHECK_FALSE(is_contiguous({DType::Float32, {2, 3}, {1, 2}}));
  CHECK(is_contiguous({DType::Float32, {0, 3}, {7, 9}}));
}

TEST_CASE("inputs of a node are listed in argument order and can be replaced") {
  Graph graph;
  const auto a = graph.add_source(Role::Input, "a", contiguous(DType::Float32, {2}));
  const auto b = graph.add_source(Role::Input, "b", contiguous(DType::Float32, {2}));
  const Node cat{.op = "aten::cat",
                 .arguments = {{"tensors", ValueList{a, std::nullopt, b}}, {"dim", std::int64_t{0}}}};
  CHECK(inputs_of(cat) == std::vector<ValueId>{a, b});
  CHECK(inputs_of(with_inputs(cat, [&](ValueId) { return b; })) == std::vector<ValueId>{b, b});
}
