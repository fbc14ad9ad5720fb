// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/find.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/planner/classes.h"
#include "shoal/planner/milp.h"
#include "shoal/rewrite/candidates.h"

using namespace shoal;
using namespace shoal::planner;
using sharding::Placement;

TEST_CASE("a program of variables that are whole has the cheapest answer") {
  Milp milp;  // a knapsack: 8, 11, 6 worth for 5, 7, 4 of weight, 10 at most
  const int a = milp.add_variable(-8, true), b = milp.add_variable(-11, true),
            c = milp.add_variable(-6, true);
  milp.add_row(0, 10, {{a, 5}, {b, 7}, {c, 4}});
  const auto solution = milp.solve();
  CHECK(solution.cost == doctest::Approx(-14));
  CHECK(solution.values == std::vector<double>{1, 0, 1});
  milp.add_row(1, 1, {{b, 1}});
  milp.forbid(b);
  CHECK_THROWS_WITH_AS(milp.solve(), doctest::Contains("no placement was found"), Error);
}

// Two products with an activation between them, forward and backward.
static const char* const kPerceptron = R"(graph captured
%0 = parameter "h.0.up.weight" : f32[64, 256]
%1 = parameter "h.0.down.weight" : f32[256, 64]
%2 = input "x" : f32[32, 64]
%3 : f32[32, 256] = aten::mm(self=%2, mat2=%0) @forward "h.0.up"
%4 : f32[32, 256] = aten::relu(self=%3) @forward "h.0"
%5 : f32[32, 64] = aten::mm(self=%4, mat2=%1) @forward "h.0.down"
%6 : f32[256, 32]{1,256} = aten::t(self=%4) @backward "h.0.down"
%7 : f32[256, 64] = aten::mm(self=%6, mat2=%5) @backward "h.0.down"
%8 : f32[64, 256]{1,64} = aten::t(self=%1) @backward "h.0.down"
%9 : f32[32, 256] = aten::mm(self=%5, mat2=%8) @backward "h.0.down"
%10 : f32[64, 32]{1,64} = aten::t(self=%2) @backward "h.0.up"
%11 : f32[64, 256] = aten::mm(self=%10, mat2=%9) @backward "h.0.up"
return output "y" %5, gradient "h.0.up.weight" %11, gradient "h.0.down.weight" %7
)";

static std::string text_of(const auto& parameters) {  // by name
  std::string text;
  for (const auto& [name, how] : parameters) text += name + " " + to_text(how) + "\n";
  return text;
}

TEST_CASE("the first of two products is cut by columns, the second by rows, and one message sums them up") {
  const ir::Graph graph = ir::from_text(kPerceptron);
  const auto mesh = sharding::mesh_from_text("tensor=2");
  const Found found = find(graph, mesh, {.batch_dims = {{"x", 0}}});
  CHECK(text_of(found.axes[0].parameters) == "h.0.down.weight S(0)\nh.0.up.weight S(1)\n");
  CHECK(to_text(found.axes[0].decided.nodes[0].out[0]) == "S(1)");
  CHECK(to_text(found.axes[0].decided.nodes[2].out[0]) == "P(sum)");
}

TEST_CASE("what is said of a parameter holds, and the others go with it") {
  const ir::Graph graph = ir::from_text(kPerceptron);
  const auto mesh = sharding::mesh_from_text("tensor=2");
  const Found found = find(
      graph, mesh,
      {.axes = {{.parameters = {{"h.0.up.weight", sharding::Shard{.dim = 0}}}}}, .batch_dims = {{"x", 0}}});
  CHECK(text_of(found.axes[0].parameters).find("h.0.up.weight S(0)\n") != std::string::npos);
  const Found whole = find(graph, mesh,
                           {.axes = {{.parameters = {{"h.0.up.weight", sharding::Replicate{}},
                                                     {"h.0.down.weight", sharding::Replicate{}}}}},
                            .batch_dims = {{"x", 0}}});
  CHECK(text_of(whole.axes[0].parameters) == "h.0.down.weight R\nh.0.up.weight R\n");
  CHECK(found.seconds >= find(graph, mesh, {.batch_dims = {{"x", 0}}}).seconds);
}

TEST_CASE("a parameter whose parts have whole blocks is cut nowhere else, or left whole") {
  const sharding::Mesh mesh = {{{"tensor", 2}}};
  const ir::Graph graph = ir::from_text(kPerceptron);
  const auto free = find(graph, mesh, {}), held = find(graph, mesh, {.in_blocks = {"h.0.up.weight"}});
  CHECK(to_text(free.axes[0].parameters.at("h.0.up.weight")) ==
        "S(1)");  // 128 columns of rows of a block each
  CHECK(to_text(held.axes[0].parameters.at("h.0.up.weight")) != "S(1)");
  CHECK(held.axes[0].parameters.at("h.0.down.weight") == free.axes[0].parameters.at("h.0.down.weight"));
  CHECK(held.seconds >= free.seconds);
}

TEST_CASE("the samples of the batch are not cut, wherever views have brought them") {
  const ir::Graph graph = ir::from_text(R"(graph captured
%0 = parameter "w" : f32[8, 8]
%1 = input "x" : f32[64, 16, 8]
%2 : f32[1024, 8] = aten::view(self=%1, size=[1024, 8]) @forward ""
%3 : f32[1024, 8] = aten::mm(self=%2, mat2=%0) @forward ""
%4 : f32[64, 16, 8] = aten::view(self=%3, size=[64, 16, 8]) @forward ""
%5 : f32[16, 64, 8]{8,128,1} = aten::transpose.int(self=%4, dim0=0, dim1=1) @forward ""
%6 : f32[16, 64, 8] = aten::relu(self=%5) @forward ""
return output "y" %6
)");
  const auto mesh = sharding::mesh_from_text("tensor=2");
  for (const int data_ranks : {1, 4}) {
    const Found found = find(graph, mesh, {.batch_dims = {{"x", 0}}, .data_ranks = data_ranks});
    const std::string merged =
        to_text(found.axes[0].decided.nodes[1].out[0]);  // positions, of each sample, or columns
    CHECK(merged != "S(0)");
    if (data_ranks > 1) CHECK(merged.find("S(0") == std::string::npos);
    CHECK(to_text(found.axes[0].decided.nodes[4].out[0]) != "S(1)");
  }
}

TEST_CASE(
    "the samples of the batch are not cut, even if nothing else is as cheap, unless somebody asks for it") {
  const ir::Graph graph = ir::from_text(R"(graph captured
%0 = parameter "w" : f32[8, 1]
%1 = input "x" : f32[64, 16, 8]
%2 : f32[1024, 8] = aten::view(self=%1, size=[1024, 8]) @forward ""
%3 : f32[1024, 1] = aten::mm(self=%2, mat2=%0) @forward ""
return output "y" %3
)");
  const auto mesh = sharding::mesh_from_text("tensor=2");
  const auto made = [&](int data_ranks) {
    const Found found = find(graph, mesh,
                             {.axes = {{.parameters = {{"w", sharding::Replicate{}}}}},
                              .batch_dims = {{"x", 0}},
                              .data_ranks = data_ranks});
    return to_text(found.axes[0].decided.nodes[1].out[0]);
  };
  CHECK(made(1) == "S(0, outer=64)");  // positions
  CHECK(made(4) == "P(sum)");          // samples are cut by the data axis, and positions are within them
  const ir::Graph product = ir::from_text(R"(graph captured
%0 = parameter "w" : f32[8, 1]
%1 = input "x" : f32[64, 8]
%2 : f32[64, 1] = aten::mm(self=%1, mat2=%0) @forward ""
return output "y" %2
)");
  for (const bool cuts_samples : {false, true}) {
    const Found alone = find(product, mesh,
                             {.axes = {{.parameters = {{"w", sharding::Replicate{}}}}},
                              .batch_dims = {{"x", 0}},
                              .cuts_samples = cuts_samples});
    CHECK(to_text(alone.axes[0].decided.nodes[0].out[0]) == (cuts_samples ? "S(0)" : "P(sum)"));
  }
}

TEST_CASE("what is a large part is shared, also where messages cost more than that saves") {
  const auto mesh = sharding::mesh_from_text("tensor=2");
  const Rates slow = {.latency = 1e3};
  const Found found = find(ir::from_text(kPerceptron), mesh, {.batch_dims = {{"x", 0}}, .rates = slow});
  CHECK(found.axes[0].decided.nodes[0].splits());
  CHECK(found.axes[0].decided.nodes[2].splits());
  const ir::Graph sum = ir::from_text(R"(graph captured
%0 = parameter "w" : f32[64, 8]
%1 = input "x" : f32[64, 8]
%2 : f32[64, 8] = aten::add.Tensor(self=%1, other=%0, alpha=1) @forward ""
return output "y" %2
)");
  const Found kept = find(sum, mesh, {.rates = slow});
  CHECK(rewrite::is_cut(kept.axes[0].parameters.at("w")));
  const Question both = {.axes = {{.axis = 1}, {.axis = 0}}, .rates = {.latency = 1e3, .kept = 0}};
  for (const FoundAxis& of : find(sum, sharding::mesh_from_text("outer=2 inner=2"), both).axes)
    CHECK(rewrite::is_cut(of.parameters.at("w")));
}

// Perceptrons on top of each other, each beside what goes around it.
static ir::Graph stack(int layers) {
  std::string text = "graph captured\n%0 = input \"x\" : f32[32, 64]\n";
  for (int i = 0; i < layers; ++i) {
    const std::string name = std::to_string(i);
    text += "%" + std::to_string(1 + 2 * i) + " = parameter \"h." + name + ".up\" : f32[64, 256]\n%" +
            std::to_string(2 + 2 * i) + " = parameter \"h." + name + ".down\" : f32[256, 64]\n";
  }
  int next = 1 + 2 * layers, value = 0;
  for (int i = 0; i < layers; ++i) {
    const std::string where = " @forward \"h." + std::to_string(i) + "\"\n";
    const auto id = [](int number) { return "%" + std::to_string(number); };
    text +=
        id(next) + " : f32[32, 256] = aten::mm(self=" + id(value) + ", mat2=" + id(1 + 2 * i) + ")" + where;
    text += id(next + 1) + " : f32[32, 256] = aten::relu(self=" + id(next) + ")" + where;
    text += id(next + 2) + " : f32[32, 64] = aten::mm(self=" + id(next + 1) + ", mat2=" + id(2 + 2 * i) +
            ")" + where;
    text += id(next + 3) + " : f32[32, 64] = aten::add.Tensor(self=" + id(value) + ", other=" + id(next + 2) +
            ", alpha=1)" + where;
    value = next + 3;
    next += 4;
  }
  text += "return output \"y\" %" + std::to_string(value) + "\n";
  return ir::from_text(text);
}

TEST_CASE("layers that are alike are one class, and cost together what they cost one by one") {
  const int layers = 4;
  const ir::Graph graph = stack(layers);
  const auto mesh = sharding::mesh_from_text("tensor=2");
  const Classes classes = classes_of(graph, std::vector<std::string>(graph.values.size()));
  CHECK(classes.nodes.size() == 4);
  CHECK(classes.nodes[0].count == layers);
  const Found folded = find(graph, mesh, {.batch_dims = {{"x", 0}}, .gap = 0});
  const Found unfolded = find(graph, mesh, {.batch_dims = {{"x", 0}}, .gap = 0, .folds = false});
  CHECK(folded.variables < unfolded.variables);
  CHECK(folded.seconds / unfolded.seconds == doctest::Approx(1).epsilon(1e-6));
  CHECK(text_of(folded.axes[0].parameters) == text_of(unfolded.axes[0].parameters));
}

TEST_CASE("the rounds of a loop are one class, and what leads in and out is by itself") {
  std::string text =
      "graph captured\n%0 = input \"x\" : f32[8, 16]\n%1 = parameter \"rnn.w\" : f32[16, 16]\n";
  const int rounds = 5;
  int value = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto id = [&](int number) { return "%" + std::to_string(number); };
    const int next = 2 + 3 * i;
    text += id(next) + " : f32[8, 16] = aten::mm(self=" + id(value) + ", mat2=%1) @forward \"rnn\"\n";
    text += id(next + 1) + " : f32[8, 16] = aten::tanh(self=" + id(next) + ") @forward \"rnn\"\n";
    text += id(next + 2) + " : f32[8, 16] = aten::tanh(self=" + id(next + 1) + ") @forward \"rnn\"\n";
    value = next + 2;
  }
  const int last = value + 1;
  text += "%" + std::to_string(last) + " : f32[8, 16] = aten::tanh(self=%" + std::to_string(value) +
          ") @forward \"head\"\nreturn output \"y\" %" + std::to_string(last) + "\n";
  const ir::Graph graph = ir::from_text(text);
  const Classes classes = classes_of(graph, std::vector<std::string>(graph.values.size()));
  REQUIRE(classes.nodes.size() == 4);  // a product and two activations of a round, and the head's
  for (std::size_t i = 0; i < 3; ++i) CHECK(classes.nodes[i].count == rounds);
  CHECK(classes.nodes[3].count == 1);
}

TEST_CASE("a limit that no placement keeps is refused, and the least is said") {
  const ir::Graph graph = ir::from_text(kPerceptron);  // two matrices of 64 KiB
  const auto mesh = sharding::mesh_from_text("tensor=2");
  CHECK(find(graph, mesh, {.most_kept = 65536}).seconds > 0);
  CHECK(find(stack(4), mesh, {.most_kept = 4 * 65536}).seconds > 0);
  CHECK_THROWS_AS(find(stack(4), mesh, {.most_kept = 4 * 65536 - 1}), Error);
  CHECK_THROWS_WITH_AS(
      find(graph, mesh, {.most_kept = 65535}),
      "planner.kept is 64.0KiB (65535 bytes), and over 2 ranks of 'tensor' no placement leaves a rank "
      "less than 64.0KiB (65536 bytes) of the model's parameters. Remedy: that much, or more ranks",
      Error);
}

TEST_CASE("a search that has no time says so, and the answer of one that has had is taken as it is") {
  const ir::Graph graph = ir::from_text(kPerceptron);
  const auto mesh = sharding::mesh_from_text("tensor=2");
  CHECK_THROWS_WITH_AS(find(graph, mesh, {.budget = 1e-9}), doctest::Contains("planner.budget"), Error);
  const Found searched = find(graph, mesh, {.budget = 1000});
  CHECK(searched.is_in_time);
  const Found told = find(graph, mesh, {.budget = 1e-9, .told = searched.told});
  CHECK(told.axes[0].decided.nodes == searched.axes[0].decided.nodes);
  CHECK(text_of(told.axes[0].parameters) == text_of(searched.axes[0].parameters));
  CHECK(told.seconds == searched.seconds);
}

static Question of_two_axes() {
  return {.axes = {{.axis = 1}, {.axis = 0}}, .batch_dims = {{"x", 0}}, .gap = 0};
}

TEST_CASE("of axes whose program is too large the innermost are found, and the others of what those leave") {
  const ir::Graph graph = ir::from_text(kPerceptron);
  const auto mesh = sharding::mesh_from_text("outer=2 inner=2");
  Question question = of_two_axes();
  const Found both = find(graph, mesh, question);
  REQUIRE(both.axes.size() == 2);
  CHECK(both.axes[0].decided.axis == 1);
  CHECK(both.axes[1].decided.axis == 0);
  question.most_together = both.variables;
  CHECK(find(graph, mesh, question).axes.size() == 2);
  question.most_together = both.variables - 1;
  const Found inner = find(graph, mesh, question);
  REQUIRE(inner.axes.size() == 1);
  CHECK(inner.question.axes.size() == 1);
  CHECK(inner.axes[0].decided.axis == 1);
  CHECK(inner.variables == find(graph, mesh, {.axes = {{.axis = 1}}, .batch_dims = {{"x", 0}}}).variables);
  const Found outer = find(graph, mesh, {.axes = {{}}, .further_in = inner.axes, .batch_dims = {{"x", 0}}});
  REQUIRE(outer.axes.size() == 1);
  CHECK(outer.seconds < inner.seconds);  // of its share of the work
}

TEST_CASE("what is known of one of two axes holds, and the other goes with it") {
  const ir::Graph graph = ir::from_text(kPerceptron);
  const auto mesh = sharding::mesh_from_text("outer=2 inner=2");
  const double free = find(graph, mesh, of_two_axes()).seconds;
  for (const std::size_t asked : {0, 1}) {
    Question question = of_two_axes();
    question.axes[asked].parameters = {{"h.0.up.weight", sharding::Shard{.dim = 0}},
                                       {"h.0.down.weight", sharding::Replicate{}}};
    const Found found = find(graph, mesh, question);
    REQUIRE(found.axes.size() == 2);
    CHECK(text_of(found.axes[asked].parameters) == "h.0.down.weight R\nh.0.up.weight S(0)\n");
    CHECK(rewrite::is_cut(found.axes[1 - asked].parameters.at("h.0.down.weight")));
    CHECK(found.seconds > free);
    Question handed_on = of_two_axes();  // of one axis; over the other it may lie in any way
    handed_on.axes[asked].values = {{*graph.nodes[1].outputs[0], sharding::Replicate{}}};
    const Found whole = find(graph, mesh, handed_on);
    CHECK(whole.seconds > free);
    CHECK(to_text(whole.axes[asked].decided.nodes[2].in[0]) == "S(1)");  // each takes its part of it
  }
}

TEST_CASE("a limit of bytes and a parameter to split are of all axes that are found together") {
  const ir::Graph graph = ir::from_text(kPerceptron);  // two matrices of 64 KiB
  const auto mesh = sharding::mesh_from_text("outer=2 inner=2");
  Question question = of_two_axes();
  question.most_kept = 32768;
  CHECK(find(graph, mesh, question).axes.size() == 2);
  question.most_kept = 32767;
  CHECK_THROWS_WITH_AS(
      find(graph, mesh, question),
      "planner.kept is 32.0KiB (32767 bytes), and over 4 ranks of 'outer' and 'inner' no placement leaves a "
      "rank less than 32.0KiB (32768 bytes) of the model's parameters. Remedy: that much, or more ranks",
      Error);
  question.most_together = 0;  // it is of the last axis
  CHECK(find(graph, mesh, question).axes.size() == 1);
  Question split = of_two_axes();
  split.split = {"h.0.up.weight"};
  const Found found = find(graph, mesh, split);
  for (const FoundAxis& of : found.axes) {
    CHECK(rewrite::is_cut(of.parameters.at("h.0.up.weight")));
    CHECK_FALSE(rewrite::is_cut(of.parameters.at("h.0.down.weight")));
  }
  const auto wide = sharding::mesh_from_text("outer=512 inner=2");
  CHECK_THROWS_WITH_AS(
      find(graph, wide, split),
      doctest::Contains("split: parameter h.0.up.weight cannot be cut over 1024 ranks of 'outer' "
                        "and 'inner'"),
      Error);
}

TEST_CASE("who is told takes as many axes together as who has searched") {
  const ir::Graph graph = ir::from_text(kPerceptron);
  const auto mesh = sharding::mesh_from_text("outer=2 inner=2");
  Question question = of_two_axes();
  for (const int most : {0, 5000}) {
    question.most_together = most;
    question.told = "";
    const Found searched = find(graph, mesh, question);
    question.told = searched.told;
    question.budget = 1e-9;
    question.most_together = 5000 - most;
    const Found told = find(graph, mesh, question);
    CHECK(told.axes == searched.axes);
    CHECK(told.axes.size() == (most == 0 ? 1 : 2));
    question.budget = 0;
  }
}

TEST_CASE("over two axes together each layer says how it lies over both, and what it costs") {
  const ir::Graph graph = ir::from_text(kPerceptron);
  const auto mesh = sharding::mesh_from_text("outer=2 inner=2");
  const Found found = find(graph, mesh, of_two_axes());
  const auto layers = explain(graph, mesh, found);
  REQUIRE(layers.size() == 3);
  CHECK(text_of(layers[0].parameters) == "weight [S(1), S(1)]\n");
  double all = 0;
  for (const Layer& layer : layers) all += layer.work + layer.changed + layer.kept;
  CHECK(all == doctest::Approx(found.seconds));
  REQUIRE(layers[0].next);
  CHECK(layers[0].next->parameters.at("weight") != layers[0].parameters.at("weight"));
  CHECK(layers[0].next->more > 0);
}

TEST_CASE("each layer says what it costs, and what its next best would") {
  const ir::Graph graph = ir::from_text(kPerceptron);
  const auto mesh = sharding::mesh_from_text("tensor=2");
  const Found found = find(graph, mesh, {.batch_dims = {{"x", 0}}, .gap = 0});
  const auto layers = explain(graph, mesh, found);
  REQUIRE(layers.size() == 3);
  CHECK(layers[0].path == "h.*.up");
  CHECK(text_of(layers[0].parameters) == "weight [S(1)]\n");
  CHECK(layers[1].path == "h.*");
  CHECK(layers[2].path == "h.*.down");
  double all = 0;
  for (const Layer& layer : layers) all += layer.work + layer.changed + layer.kept;
  CHECK(all == doctest::Approx(found.seconds));
  CHECK_FALSE(layers[1].next);
  CHECK(layers[0].work > 0);
  CHECK(layers[0].kept == doctest::Approx(32768 * Rates{}.kept / Rates{}.link));
  CHECK(layers[1].kept == 0);
  CHECK(layers[0].changed == 0);
  CHECK(layers[2].changed > Rates{}.latency);  // the sum of what both have made
  for (const std::size_t index :
       {0, 2}) {  // as good as the best among all others is what asking for it finds
    REQUIRE(layers[index].next);
    const auto& [name, layout] = *layers[index].next->parameters.begin();
    CHECK(layout != layers[index].parameters.at(name));
    const std::string path = index == 0 ? "h.0.up." : "h.0.down.";
    const Found other = find(graph, mesh,
                             {.axes = {{.parameters = {{path + name, layout.placements[0]}}}},
                              .batch_dims = {{"x", 0}},
                              .gap = 0});
    CHECK(layers[index].next->more == doctest::Approx(other.seconds - found.seconds));
    CHECK(layers[index].next->more > 0);
  }
}
