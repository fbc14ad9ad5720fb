// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/recompute.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "shoal/base/error_test.h"
#include "shoal/base/text.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/transfer.h"

using namespace shoal;
using namespace shoal::rewrite;

namespace {

// Two blocks of a product and a function each, and what comes before and after them.
const char* const kBlocks = R"(graph captured
%0 = parameter "h.0.w" : f32[4, 4]
%1 = parameter "h.1.w" : f32[4, 4]
%2 = input "x" : f32[8, 4]
%3 : f32[8, 4] = aten::exp(self=%2) @forward "embed"
%4 : f32[8, 4] = aten::mm(self=%3, mat2=%0) @forward "h.0.fc"
%5 : f32[8, 4] = aten::tanh(self=%4) @forward "h.0"
%6 : f32[8, 4] = aten::mm(self=%5, mat2=%1) @forward "h.1.fc"
%7 : f32[8, 4] = aten::tanh(self=%6) @forward "h.1"
%8 : f32[8, 4] = aten::exp(self=%7) @forward "head"
%9 : f32[8, 4] = aten::mul.Tensor(self=%8, other=%8) @backward "head"
%10 : f32[8, 4] = aten::tanh_backward(grad_output=%9, output=%7) @backward "h.1"
%11 : f32[4, 8]{1,4} = aten::t(self=%5) @backward "h.1.fc"
%12 : f32[4, 4] = aten::mm(self=%11, mat2=%10) @backward "h.1.fc"
%13 : f32[8, 4] = aten::mul.Tensor(self=%10, other=%6) @backward "h.1"
%14 : f32[8, 4] = aten::tanh_backward(grad_output=%13, output=%4) @backward "h.0"
%15 : f32[4, 8]{1,4} = aten::t(self=%3) @backward "h.0.fc"
%16 : f32[4, 4] = aten::mm(self=%15, mat2=%14) @backward "h.0.fc"
return loss "loss" %8, gradient "h.0.w" %16, gradient "h.1.w" %12
)";

std::string backward_of(const ir::Graph& graph) {
  ir::verify(graph);
  std::string story;
  for (const ir::Node& node : graph.nodes)
    if (node.phase == ir::Phase::Backward) story += concat(node.op, ' ', node.module, '\n');
  return story;
}

ir::Graph recomputed(const char* text, const Recompute& how, bool gathers_again = true) {
  const ir::Graph graph = ir::from_text(text);
  return recompute(graph, dropped_by(how, graph, gathers_again, graph));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("full: of a numbered block what enters it is kept, the rest is made right before it is read") {
  const ir::Graph graph = recomputed(kBlocks, {.mode = RecomputeMode::Full});
  ir::verify(graph);
  // %7 leaves h.1 and %5 leaves h.0: they are kept. %6 and %4 are made again, each where backward reads it.
  CHECK(ir::to_text(graph) == R"(graph captured
%0 = parameter "h.0.w" : f32[4, 4]
%1 = parameter "h.1.w" : f32[4, 4]
%2 = input "x" : f32[8, 4]
%3 : f32[8, 4] = aten::exp(self=%2) @forward "embed"
%4 : f32[8, 4] = aten::mm(self=%3, mat2=%0) @forward "h.0.fc"
%5 : f32[8, 4] = aten::tanh(self=%4) @forward "h.0"
%6 : f32[8, 4] = aten::mm(self=%5, mat2=%1) @forward "h.1.fc"
%7 : f32[8, 4] = aten::tanh(self=%6) @forward "h.1"
%8 : f32[8, 4] = aten::exp(self=%7) @forward "head"
%9 : f32[8, 4] = aten::mul.Tensor(self=%8, other=%8) @backward "head"
%10 : f32[8, 4] = aten::tanh_backward(grad_output=%9, output=%7) @backward "h.1"
%11 : f32[4, 8]{1,4} = aten::t(self=%5) @backward "h.1.fc"
%12 : f32[4, 4] = aten::mm(self=%11, mat2=%10) @backward "h.1.fc"
%13 activation : f32[8, 4] = aten::mm(self=%5, mat2=%1) @backward "h.1.fc"
%14 : f32[8, 4] = aten::mul.Tensor(self=%10, other=%13) @backward "h.1"
%15 activation : f32[8, 4] = aten::mm(self=%3, mat2=%0) @backward "h.0.fc"
%16 : f32[8, 4] = aten::tanh_backward(grad_output=%14, output=%15) @backward "h.0"
%17 : f32[4, 8]{1,4} = aten::t(self=%3) @backward "h.0.fc"
%18 : f32[4, 4] = aten::mm(self=%17, mat2=%16) @backward "h.0.fc"
return loss "loss" %8,
       gradient "h.0.w" %18,
       gradient "h.1.w" %12
)");
}

TEST_CASE("selective: all but matrix products is made again") {
  // %4 and %6 are products. Nothing else in the blocks is read in backward but what leaves them.
  CHECK(recomputed(kBlocks, {.mode = RecomputeMode::Selective}) == ir::from_text(kBlocks));
  const std::string text = replaced(kBlocks, "output=%4) @backward", "output=%3) @backward");
  const std::string reads_a_function =
      replaced(replaced(text, "aten::mm(self=%3, mat2=%0) @forward \"h.0.fc\"",
                        "aten::mul.Tensor(self=%3, other=%3) @forward \"h.0\""),
               "self=%10, other=%6", "self=%10, other=%4");
  CHECK(backward_of(recomputed(reads_a_function.c_str(), {.mode = RecomputeMode::Selective}))
            .find("aten::mul.Tensor h.0\naten::mul.Tensor h.1\n") != std::string::npos);
}

TEST_CASE("by path: only what is in the modules that are named") {
  const std::string before = backward_of(ir::from_text(kBlocks));
  const auto of = [](const std::vector<std::string>& modules) {
    return backward_of(recomputed(kBlocks, {.mode = RecomputeMode::Full, .modules = modules}));
  };
  CHECK(of({"h.0"}) ==
        replaced(before, "aten::tanh_backward h.0", "aten::mm h.0.fc\naten::tanh_backward h.0"));
  CHECK(of({"h.*"}) == of({"h.0", "h.1"}));
  // One block of all: what h.0 hands to h.1 is made again too, and what was made for one is there for the next.
  CHECK(of({"h"}) ==
        "aten::mul.Tensor head\naten::tanh_backward h.1\naten::mm h.0.fc\naten::tanh h.0\naten::t h.1.fc\n"
        "aten::mm h.1.fc\naten::mm h.1.fc\naten::mul.Tensor h.1\naten::tanh_backward h.0\naten::t h.0.fc\n"
        "aten::mm h.0.fc\n");
  CHECK(error_of([&] { of({"h.*", "hh.1"}); }) ==
        "recompute: no module is named 'hh.1'; the nearest is 'h.*'");
  CHECK(error_of([&] { of({"fc"}); }) == "recompute: no module is named 'fc'; the nearest is 'h.0.fc'");
  CHECK(error_of([&] { of({"*.fc"}); }) == "recompute: no module is named '*.fc'; the nearest is 'h.*.fc'");
  CHECK(error_of([] {
          recomputed(
              "graph captured\n%0 = input \"x\" : f32[8]\n%1 : f32[8] = aten::exp(self=%0) @forward "
              "\"h.0\"\nreturn output \"y\" %1\n",
              {.mode = RecomputeMode::Full});
        }).find("no numbered modules, as h.0 and h.1; name the modules") != std::string::npos);
}

TEST_CASE("what one memory holds is kept or dropped as one, and what leaves a block through a view is kept") {
  const char* const kView = R"(graph captured
%0 = input "x" : f32[8, 4]
%1 : f32[8, 4] = aten::exp(self=%0) @forward "h.0"
%2 : f32[8, 4] = aten::tanh(self=%1) @forward "h.0"
%3 : f32[4, 8]{1,4} = aten::t(self=%2) @forward "h.0"
%4 : f32[4, 8]{1,4} = aten::exp(self=%3) @forward "h.1"
%5 : f32[4, 8]{1,4} = aten::t(self=%1) @forward "h.1"
%6 : f32[4, 8]{1,4} = aten::mul.Tensor(self=%4, other=%4) @backward "h.1"
%7 : f32[8, 4] = aten::mul.Tensor(self=%2, other=%2) @backward "h.0"
%8 : f32[4, 8]{1,4} = aten::mul.Tensor(self=%5, other=%5) @backward "h.0"
return output "a" %4, output "b" %6, output "c" %7, output "d" %8
)";
  // %2 is read by h.1 through %3; %1 is h.0's alone, and its view %5 is made again with it.
  CHECK(backward_of(recomputed(kView, {.mode = RecomputeMode::Full})) ==
        "aten::mul.Tensor h.1\naten::mul.Tensor h.0\naten::exp h.0\naten::t h.1\naten::mul.Tensor h.0\n");
}

TEST_CASE("random numbers are drawn again by the same ordinal; running statistics are written once") {
  const char* const kNorm = R"(graph captured
%0 = buffer "h.0.mean" : f32[4]
%1 = input "x" : f32[8, 4]
%2 = scalar "seed" : i64[]
%3 : f32[8, 4] = shoal::bernoulli(seed=%2, ordinal=3) @forward "h.0"
%4 : f32[8, 4] = aten::mul.Tensor(self=%1, other=%3) @forward "h.0"
%5 : f32[8, 4], %6 : f32[4] = aten::var_mean(self=%4, running=%0) @forward "h.0"
%7 : f32[8, 4] = aten::exp(self=%5) @forward "h.1"
%8 : f32[8, 4] = aten::mul.Tensor(self=%7, other=%7) @backward "h.1"
%9 : f32[8, 4] = aten::mul.Tensor(self=%8, other=%4) @backward "h.0"
return output "y" %7, output "dx" %9, buffer "h.0.mean" %6
)";
  const ir::Graph graph = recomputed(kNorm, {.mode = RecomputeMode::Full, .modules = {"h.*"}});
  CHECK(backward_of(graph) ==
        "aten::mul.Tensor h.1\nshoal::bernoulli h.0\naten::mul.Tensor h.0\naten::mul.Tensor h.0\n");
  const auto draw = std::ranges::find_if(graph.nodes, [](const ir::Node& node) {
    return node.op == "shoal::bernoulli" && node.phase == ir::Phase::Backward;
  });
  CHECK(*ir::find(*draw, "ordinal") == ir::Attribute(std::int64_t{3}));
  const auto mean = std::ranges::find(graph.results, ir::Role::Buffer, &ir::Result::role);
  CHECK(graph.at(*graph.at(mean->value).producer).phase == ir::Phase::Forward);
}

namespace {
// A block on a rank: a parameter that is gathered, forward and backward, and a sum over ranks.
ir::Graph on_a_rank() {
  const char* const kLocal = R"(graph local
%0 = parameter "h.0.w" : f32[2, 4]
%1 = input "x" : f32[8, 4]
%2 : f32[4, 4] = shoal::transfer(tensors=[%0], over=[], kind="all_gather", axis="shard") @forward "h.0"
%3 : f32[8, 4] = aten::mm(self=%1, mat2=%2) @forward "h.0"
%4 : f32[8, 4] = shoal::transfer(tensors=[%3], over=[], kind="all_reduce", axis="shard", combine="sum") @forward "h.0"
%5 : f32[8, 4] = aten::tanh(self=%4) @forward "h.0"
%6 : f32[8, 4] = aten::exp(self=%5) @forward "head"
%7 : f32[8, 4] = aten::mul.Tensor(self=%6, other=%6) @backward "head"
%8 : f32[8, 4] = aten::mul.Tensor(self=%7, other=%4) @backward "h.0"
%9 : f32[8, 4] = aten::mul.Tensor(self=%8, other=%3) @backward "h.0"
%10 : f32[4, 4] = shoal::transfer(tensors=[%0], over=[], kind="all_gather", axis="shard") @backward "h.0"
%11 : f32[8, 4] = aten::mm(self=%9, mat2=%10) @backward "h.0"
return output "y" %6, output "dx" %11
)";
  return ir::from_text(kLocal);
}
std::string of(const ir::Graph& graph, bool gathers_again, bool collectives) {
  const Recompute how = {.mode = RecomputeMode::Full, .modules = {"h.*"}, .collectives = collectives};
  return backward_of(recompute(graph, dropped_by(how, graph, gathers_again, graph)));
}
}  // namespace

TEST_CASE("collectives are not repeated unless asked; parameters are gathered once for copies and backward") {
  CHECK(of(on_a_rank(), true, false) ==
        "aten::mul.Tensor head\naten::mul.Tensor h.0\nshoal::transfer h.0\naten::mm h.0\n"
        "aten::mul.Tensor h.0\naten::mm h.0\n");
  CHECK(of(on_a_rank(), true, true) ==
        "aten::mul.Tensor head\nshoal::transfer h.0\naten::mm h.0\nshoal::transfer h.0\n"
        "aten::mul.Tensor h.0\naten::mul.Tensor h.0\naten::mm h.0\n");
  // Where they are kept since forward, copies read what is there.
  const std::string again =
      "%10 : f32[4, 4] = shoal::transfer(tensors=[%0], over=[], kind=\"all_gather\", axis=\"shard\") "
      "@backward \"h.0\"\n%11";
  std::string text = replaced(ir::to_text(on_a_rank()), again, "%10");
  text = replaced(replaced(text, "mat2=%10) @backward", "mat2=%2) @backward"), "\"dx\" %11", "\"dx\" %10");
  const ir::Graph once = ir::from_text(text);
  const char* const kept =
      "aten::mul.Tensor head\naten::mul.Tensor h.0\naten::mm h.0\naten::mul.Tensor h.0\naten::mm h.0\n";
  CHECK(of(once, false, false) == kept);
  CHECK(of(once, true, false) == kept);  // nobody gathers along that axis for backward
}

TEST_CASE("what a stage makes again is of that stage, whichever made it first") {
  ir::Graph graph = ir::from_text(R"(graph local
%0 = input "x" : f32[4]
%1 : f32[4] = aten::exp(self=%0) @forward "a"
%2 : f32[4] = shoal::receive(axis="pipeline", from=1, device=cpu) @forward 1
%3 : f32[4] = aten::mul.Tensor(self=%2, other=%1) @forward 2 "c"
%4 : f32[4] = aten::mul.Tensor(self=%3, other=%1) @backward 2 "c"
%5 : f32[4] = aten::mul.Tensor(self=%4, other=%1) @backward "a"
return loss "loss" %3, gradient "w" %5
)");
  Dropped dropped(graph.values.size());
  dropped[1] = true;
  const ir::Graph again = recompute(graph, dropped);
  ir::verify(again);
  std::string story;
  for (const ir::Node& node : again.nodes)
    if (node.phase == ir::Phase::Backward) story += concat(node.op, ' ', node.stage, '\n');
  CHECK(story == "aten::exp 2\naten::mul.Tensor 2\naten::mul.Tensor 0\n");
}
