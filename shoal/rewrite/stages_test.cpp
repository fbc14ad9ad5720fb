// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/stages.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/cuts.h"
#include "shoal/rewrite/stage_of_rank.h"

using namespace shoal;
using namespace shoal::rewrite;

// Two layers and a loss; the first layer's weight is the second's too where `tied`.
static ir::Graph step(bool tied = false) {
  const std::string second = tied ? "%0" : "%1";
  return ir::from_text(R"(graph local
%0 = parameter "a.weight" : f32[4, 4]
%1 = parameter "b.weight" : f32[4, 4]
%2 = input "x" : f32[2, 4]
%3 = constant "c0" : f32[2, 4]
%4 : f32[2, 4] = aten::neg(self=%3) @forward "a"
%5 : f32[2, 4] = aten::mm(self=%2, mat2=%0) @forward "a"
%6 : f32[2, 4] = aten::mul.Tensor(self=%5, other=%4) @forward "a"
%7 : f32[2, 4] = aten::mm(self=%6, mat2=)" +
                       second + R"() @forward "b"
%8 : f32[2, 4] = aten::mul.Tensor(self=%7, other=%4) @forward "b"
%9 : f32[] = aten::sum(self=%8, dtype=none) @forward
%10 : f32[2, 4] = aten::mul.Tensor(self=%4, other=%4) @backward "b"
%11 : f32[4, 2]{1,4} = aten::t(self=%6) @backward "b"
%12 : f32[4, 4] = aten::mm(self=%11, mat2=%10) @backward "b"
%13 : f32[4, 4]{1,4} = aten::t(self=)" +
                       second + R"() @backward "b"
%14 : f32[2, 4] = aten::mm(self=%10, mat2=%13) @backward "b"
%15 : f32[2, 4] = aten::mul.Tensor(self=%14, other=%4) @backward "a"
%16 : f32[4, 2]{1,4} = aten::t(self=%2) @backward "a"
%17 : f32[4, 4] = aten::mm(self=%16, mat2=%15) @backward "a"
)" +
                       (tied ? R"(%18 : f32[4, 4] = aten::add.Tensor(self=%12, other=%17, alpha=1) @backward
return loss "loss" %9, gradient "a.weight" %18
)"
                             : R"(return loss "loss" %9, gradient "a.weight" %17, gradient "b.weight" %12
)"));
}

static std::vector<int> a_rank_each(int stages) {
  std::vector<int> ranks(static_cast<std::size_t>(stages));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

static std::string text_of(const ir::Graph& graph, const Stages& stages, int rank) {
  const auto mesh = sharding::mesh_from_text("pipeline=2");
  const auto local = stage_of_rank(graph, stages, mesh, rank, "pipeline", "cpu");
  ir::verify(local);
  return ir::to_text(local);
}

TEST_CASE("each rank has its stage's nodes, and what crosses is sent once") {
  const auto [graph, stages] = assign_stages(step(), a_rank_each(2), {"b"});
  CHECK(stages.owners == std::map<std::string, int>{{"a.weight", 0}, {"b.weight", 1}});
  // What depends on no parameter (%4) is made by both.
  CHECK(text_of(graph, stages, 0) == R"(graph local
%0 = parameter "a.weight" : f32[4, 4]
%1 = parameter "b.weight" : f32[0, 4]
%2 = input "x" : f32[2, 4]
%3 = constant "c0" : f32[2, 4]
%4 : f32[2, 4] = aten::neg(self=%3) @forward "a"
%5 : f32[2, 4] = aten::mm(self=%2, mat2=%0) @forward "a"
%6 : f32[2, 4] = aten::mul.Tensor(self=%5, other=%4) @forward "a"
() = shoal::send(self=%6, axis="pipeline", to=1) @forward
%7 activation : f32[] = shoal::receive(axis="pipeline", from=1, device=cpu) @backward 1
%8 : f32[2, 4] = shoal::receive(axis="pipeline", from=1, device=cpu) @backward 1
%9 : f32[2, 4] = aten::mul.Tensor(self=%8, other=%4) @backward "a"
%10 : f32[4, 2]{1,4} = aten::t(self=%2) @backward "a"
%11 : f32[4, 4] = aten::mm(self=%10, mat2=%9) @backward "a"
return loss "loss" %7,
       gradient "a.weight" %11,
       gradient "b.weight" %1
)");
  CHECK(text_of(graph, stages, 1) == R"(graph local
%0 = parameter "a.weight" : f32[0, 4]
%1 = parameter "b.weight" : f32[4, 4]
%2 = input "x" : f32[2, 4]
%3 = constant "c0" : f32[2, 4]
%4 : f32[2, 4] = shoal::receive(axis="pipeline", from=0, device=cpu) @forward
%5 : f32[2, 4] = aten::mm(self=%4, mat2=%1) @forward 1 "b"
%6 : f32[2, 4] = aten::neg(self=%3) @forward 1 "a"
%7 : f32[2, 4] = aten::mul.Tensor(self=%5, other=%6) @forward 1 "b"
%8 : f32[] = aten::sum(self=%7, dtype=none) @forward 1
() = shoal::send(self=%8, axis="pipeline", to=0) @backward 1
%9 : f32[2, 4] = aten::mul.Tensor(self=%6, other=%6) @backward 1 "b"
%10 : f32[4, 2]{1,4} = aten::t(self=%4) @backward 1 "b"
%11 : f32[4, 4] = aten::mm(self=%10, mat2=%9) @backward 1 "b"
%12 : f32[4, 4]{1,4} = aten::t(self=%1) @backward 1 "b"
%13 : f32[2, 4] = aten::mm(self=%9, mat2=%12) @backward 1 "b"
() = shoal::send(self=%13, axis="pipeline", to=0) @backward 1
return loss "loss" %8,
       gradient "a.weight" %0,
       gradient "b.weight" %11
)");
}

TEST_CASE("a weight of two stages is each one's, and so is a summand of its gradient") {
  const auto [graph, stages] = assign_stages(step(true), a_rank_each(2), {"b"});
  CHECK(stages.owner_of("a.weight") == Stages::kShared);
  const std::string first = text_of(graph, stages, 0), second = text_of(graph, stages, 1);
  CHECK(first.find("aten::add") == std::string::npos);
  CHECK(first.find("gradient \"a.weight\" %11") != std::string::npos);
  CHECK(second.find("gradient \"a.weight\" %11") != std::string::npos);
  CHECK(second.find("parameter \"a.weight\" : f32[4, 4]") != std::string::npos);
}

// Four layers and a loss that reads what the first one makes too: stages 0 and 2 on rank 0, 1 and 3 on rank 1.
TEST_CASE("stages of a rank send nothing to each other, and all of another's once to it") {
  const ir::Graph step_of_four = ir::from_text(R"(graph local
%0 = parameter "a" : f32[4]
%1 = parameter "b" : f32[4]
%2 = parameter "c" : f32[4]
%3 = parameter "d" : f32[4]
%4 = input "x" : f32[4]
%5 : f32[4] = aten::mul.Tensor(self=%4, other=%0) @forward "a"
%6 : f32[4] = aten::mul.Tensor(self=%5, other=%1) @forward "b"
%7 : f32[4] = aten::mul.Tensor(self=%6, other=%2) @forward "c"
%8 : f32[4] = aten::mul.Tensor(self=%7, other=%3) @forward "d"
%9 : f32[4] = aten::mul.Tensor(self=%8, other=%5) @forward "d"
%10 : f32[4] = aten::exp(self=%9) @backward "d"
%11 : f32[4] = aten::mul.Tensor(self=%10, other=%3) @backward "d"
%12 : f32[4] = aten::mul.Tensor(self=%11, other=%7) @backward "c"
%13 : f32[4] = aten::mul.Tensor(self=%12, other=%1) @backward "b"
%14 : f32[4] = aten::mul.Tensor(self=%13, other=%0) @backward "a"
return output "y" %9, output "h" %6, gradient "a" %14, gradient "b" %13, gradient "c" %12, gradient "d" %11
)");
  const auto [graph, stages] = assign_stages(step_of_four, {0, 1, 0, 1}, {"b", "c", "d"});
  CHECK(stages.owners == std::map<std::string, int>{{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}});
  CHECK(stages.place_of("c") == 0);
  CHECK(stages.of_rank(1) == std::vector<int>{1, 3});
  CHECK(text_of(graph, stages, 0) == R"(graph local
%0 = parameter "a" : f32[4]
%1 = parameter "b" : f32[0]
%2 = parameter "c" : f32[4]
%3 = parameter "d" : f32[0]
%4 = input "x" : f32[4]
%5 : f32[4] = aten::mul.Tensor(self=%4, other=%0) @forward "a"
() = shoal::send(self=%5, axis="pipeline", to=1) @forward
%6 : f32[4] = shoal::receive(axis="pipeline", from=1, device=cpu) @forward 1
%7 : f32[4] = aten::mul.Tensor(self=%6, other=%2) @forward 2 "c"
() = shoal::send(self=%7, axis="pipeline", to=1) @forward 2
%8 activation : f32[4] = shoal::receive(axis="pipeline", from=1, device=cpu) @backward 3
%9 : f32[4] = shoal::receive(axis="pipeline", from=1, device=cpu) @backward 3
%10 : f32[4] = aten::mul.Tensor(self=%9, other=%7) @backward 2 "c"
() = shoal::send(self=%10, axis="pipeline", to=1) @backward 2
%11 : f32[4] = shoal::receive(axis="pipeline", from=1, device=cpu) @backward 1
%12 : f32[4] = aten::mul.Tensor(self=%11, other=%0) @backward "a"
return output "y" %8,
       output "h" %6,
       gradient "a" %12,
       gradient "b" %1,
       gradient "c" %10,
       gradient "d" %3
)");
}

TEST_CASE("a weight of two stages of one rank is that rank's alone") {
  const auto [graph, stages] = assign_stages(step(true), {0, 0}, {"b"});
  CHECK(stages.owner_of("a.weight") == 0);
  CHECK(stages.place_of("a.weight") == 0);
  CHECK(assign_stages(step(true), {0, 1}, {"b"}).second.place_of("a.weight") == Stages::kShared);
}

TEST_CASE("cuts are found where the busiest stage has least, and are named") {
  CHECK(assign_stages(step(), a_rank_each(3), {}).second.begins.size() == 2);
  CHECK(assign_stages(step(), a_rank_each(2), {"b+1"}).second.begins == std::vector<std::string>{"b+1"});
}

TEST_CASE("where nodes are marked a stage begins at the first that is") {
  ir::Graph graph = step();
  const auto as_named = assign_stages(graph, a_rank_each(2), {"b"});
  bool is_marked = false;
  for (ir::Node& node : graph.nodes) {
    is_marked = is_marked || node.module == "b";
    node.stage =
        is_marked && node.phase == ir::Phase::Forward && node.module == "b" ? 1 : 0;  // others have no mark
  }
  CHECK(assign_marked(graph, a_rank_each(2)) == as_named);
  CHECK_THROWS_WITH_AS(assign_marked(graph, a_rank_each(3)),
                       "pipeline: stage 2 of the 3 that the program marks does nothing that is left. Remedy: "
                       "leave that scope out",
                       Error);
  for (ir::Node& node : graph.nodes) node.stage *= 2;
  CHECK_THROWS_WITH_AS(
      assign_marked(graph, a_rank_each(3)),
      "pipeline: stage 1 of those that the program marks does nothing; stage 2 begins in module 'b'. "
      "Remedy: leave that scope out",
      Error);
}

TEST_CASE("what cannot be cut so is told") {
  CHECK_THROWS_WITH_AS(
      assign_stages(step(), a_rank_each(2), {"c"}),
      "pipeline: a stage is to begin at 'c', and forward has nothing there; did you mean 'a'?", Error);
  CHECK_THROWS_WITH_AS(assign_stages(step(), a_rank_each(9), {}),
                       "pipeline: 9 stages, and forward has 6 nodes to cut between. Remedy: fewer stages",
                       Error);
  CHECK_THROWS_AS(assign_stages(step(), a_rank_each(3), {"b", "a"}), Error);
  CHECK_THROWS_AS(assign_stages(step(), a_rank_each(3), {"b"}), Error);
}

TEST_CASE("the cuts that are found are the best there are") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 50; ++trial) {
    // A chain of products, each of other sizes, and a value or two that live longer.
    const int count = 4 + static_cast<int>(random() % 6);
    std::string text = "graph local\n%0 = input \"x\" : f32[8, 4]\n", nodes;
    std::vector<int> widths = {4};
    for (int i = 1; i <= count; ++i) {
      widths.push_back(1 + static_cast<int>(random() % 200));
      text += concat('%', i, " = parameter \"w", i, "\" : f32[", widths[widths.size() - 2], ", ",
                     widths.back(), "]\n");
    }
    for (int i = 1; i <= count; ++i)
      nodes += concat('%', count + i, " : f32[8, ", widths[static_cast<std::size_t>(i)],
                      "] = aten::mm(self=%", i == 1 ? 0 : count + i - 1, ", mat2=%", i, ") @forward \"m\"\n");
    const ir::Graph graph = ir::from_text(text + nodes + concat("return output \"y\" %", 2 * count, "\n"));
    const Cuts cuts(graph, std::vector<bool>(graph.nodes.size()));
    const auto most = [&](const std::vector<std::size_t>& begins) {
      double cost = 0;
      for (std::size_t i = 0; i <= begins.size(); ++i)
        cost = std::max(
            cost, cuts.cost(i == 0 ? 0 : begins[i - 1], i == begins.size() ? graph.nodes.size() : begins[i]));
      return cost;
    };
    double two = std::numeric_limits<double>::infinity(), three = two;
    for (std::size_t a = 1; a < graph.nodes.size(); ++a) {
      two = std::min(two, most({a}));
      for (std::size_t b = a + 1; b < graph.nodes.size(); ++b) three = std::min(three, most({a, b}));
    }
    CHECK(most(cuts.best(2)) == two);
    CHECK(most(cuts.best(3)) == three);
  }
}
