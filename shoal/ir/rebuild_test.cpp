// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/rebuild.h"

#include <doctest/doctest.h>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

using namespace shoal;
using namespace shoal::ir;

// The loss is a role that add_node does not give; the sources stand in no order of ids.
static Graph example() {
  return from_text(
      "graph local\n"
      "%1 = constant \"c\" : f32[2] fingerprint \"ab\"\n"
      "%0 = input \"x\" : f32[2]\n"
      "%2 : f32[2], _ = ns::two(self=%0, other=%1) @forward \"m\"\n"
      "%3 : f32[2] = aten::neg(self=%2) @forward\n"
      "%4 loss : f32[] = aten::sum(self=%3, dtype=none) @forward\n"
      "return loss \"loss\" %4");
}

TEST_CASE("a rebuild without change is the same graph, numbered afresh") {
  const Graph made = rebuild(example(), [](Graph&, const Node&, const Mapped&) { return std::nullopt; });
  verify(made);
  CHECK(to_text(made) ==
        "graph local\n"
        "%0 = constant \"c\" : f32[2] fingerprint \"ab\"\n"
        "%1 = input \"x\" : f32[2]\n"
        "%2 : f32[2], _ = ns::two(self=%1, other=%0) @forward \"m\"\n"
        "%3 : f32[2] = aten::neg(self=%2) @forward\n"
        "%4 loss : f32[] = aten::sum(self=%3, dtype=none) @forward\n"
        "return loss \"loss\" %4\n");
}

TEST_CASE("a change puts other nodes in a node's place") {
  const Graph old = example();
  const Graph made =
      rebuild(old, [&](Graph& graph, const Node& node, const Mapped& in) -> std::optional<Outputs> {
        if (node.op != "aten::neg") return std::nullopt;
        const Outputs once = copy(old, node, in, graph);
        return graph
            .at(graph.add_node(
                {.op = "aten::exp", .arguments = {{"self", *once[0]}}, .outputs = {}, .module = ""},
                {graph.at(*once[0]).type}))
            .outputs;
      });
  verify(made);
  CHECK(to_text(made, made.nodes[2]) == "%4 : f32[2] = aten::exp(self=%3) @forward");
  CHECK(to_text(made, made.nodes[3]) == "%5 loss : f32[] = aten::sum(self=%4, dtype=none) @forward");
}

TEST_CASE("a dropped value that is still read is an error") {
  const auto drop = [](Graph&, const Node& node, const Mapped&) -> std::optional<Outputs> {
    if (node.op != "aten::neg") return std::nullopt;
    return Outputs{std::nullopt};
  };
  CHECK_THROWS_WITH_AS(rebuild(example(), drop), "rebuild: nothing stands for %3, but it is read", Error);
}

TEST_CASE("a change answers for every output") {
  const auto forget = [](Graph&, const Node&, const Mapped&) { return std::optional(Outputs{}); };
  CHECK_THROWS_WITH_AS(rebuild(example(), forget), "rebuild: 0 values stand for the 2 outputs of ns::two",
                       Error);
}
