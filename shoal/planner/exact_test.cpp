// SPDX-License-Identifier: Apache-2.0
// What is found, against all there is.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "shoal/ir/text.h"
#include "shoal/planner/all_there_is_test.h"
#include "shoal/planner/find.h"
#include "shoal/rewrite/candidates.h"

using namespace shoal;
using namespace shoal::planner;

namespace {

// A graph of a few products, sums and activations over matrices of one batch.
ir::Graph drawn(std::mt19937& random, int most_nodes) {
  const auto any = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  const std::vector<std::int64_t> widths = {8, 12, 16};
  ir::Graph graph;
  std::vector<ir::ValueId> values = {
      graph.add_source(ir::Role::Input, "x", ir::contiguous(DType::Float32, {4, widths[any(3)]}))};
  const int nodes = 2 + any(most_nodes - 1);
  for (int i = 0; i < nodes; ++i) {
    const ir::ValueId from = values[static_cast<std::size_t>(any(static_cast<int>(values.size())))];
    const auto shape = graph.at(from).type.shape;
    std::vector<ir::ValueId> alike;
    for (const ir::ValueId value : values)
      if (graph.at(value).type.shape == shape) alike.push_back(value);
    ir::Node node{.op = {}, .arguments = {}, .outputs = {}, .phase = ir::Phase::Forward, .module = "m"};
    auto made = shape;
    switch (any(3)) {
      case 0: {
        made[1] = widths[static_cast<std::size_t>(any(3))];
        const auto weight =
            graph.add_source(ir::Role::Parameter, "w" + std::string(1, static_cast<char>('a' + i)),
                             ir::contiguous(DType::Float32, {shape[1], made[1]}));
        node.op = "aten::mm";
        node.arguments = {{"self", from}, {"mat2", weight}};
        break;
      }
      case 1:
        node.op = "aten::relu";
        node.arguments = {{"self", from}};
        break;
      default:
        node.op = "aten::add.Tensor";
        node.arguments = {{"self", from},
                          {"other", alike[static_cast<std::size_t>(any(static_cast<int>(alike.size())))]},
                          {"alpha", std::int64_t{1}}};
    }
    const auto id = graph.add_node(node, {ir::contiguous(DType::Float32, made)});
    values.push_back(*graph.at(id).outputs[0]);
  }
  graph.add_result(ir::Role::Output, "y", values.back());
  return graph;
}

// Each axis of what those further in leave.
std::vector<FoundAxis> one_by_one(const ir::Graph& graph, const sharding::Mesh& mesh, Question question) {
  question.most_together = 0;
  while (!question.axes.empty()) {
    question.further_in.push_back(find(graph, mesh, question).axes.front());
    question.axes.erase(question.axes.begin());
  }
  return question.further_in;
}

bool any_is_cut(const Found& found) {
  return std::ranges::any_of(found.axes, [](const FoundAxis& of) {
    return std::ranges::any_of(of.parameters, [](const auto& each) { return rewrite::is_cut(each.second); });
  });
}
bool any_is_whole(const Found& found) {
  return std::ranges::any_of(found.axes, [](const FoundAxis& of) {
    return !std::ranges::all_of(of.parameters, [](const auto& each) { return rewrite::is_cut(each.second); });
  });
}

struct Counts {
  int cut = 0, whole = 0, limited = 0, together = 0;  // which costs less than one axis after the other
};

// Graph `i` of those on these meshes, as matrices have to be cut, as they may stay whole, and with a limit.
void check_all(std::mt19937& random, int i, const std::vector<const char*>& meshes, int most_nodes,
               Counts& counts) {
  const ir::Graph graph = drawn(random, most_nodes);
  const auto mesh = sharding::mesh_from_text(meshes[static_cast<std::size_t>(i) % meshes.size()]);
  Rates rates;
  rates.latency = i % 3 == 0 ? 1e-9 : 1e-7;
  rates.flops = i % 5 == 0 ? 1e8 : 5e9;
  Question question = {
      .axes = {}, .batch_dims = {{"x", 0}}, .rates = rates, .gap = 0, .most_together = 1 << 20};
  for (std::size_t axis = mesh.axes.size(); axis-- > 0;) question.axes.push_back({.axis = axis});
  CAPTURE(i);
  CAPTURE(to_text(mesh));
  CAPTURE(ir::to_text(graph));
  const auto check = [&] {
    const Found found = find(graph, mesh, question);
    REQUIRE(found.axes.size() == mesh.axes.size());
    const double least = AllThereIs(graph, mesh, question).least();
    CHECK(found.seconds / least == doctest::Approx(1).epsilon(1e-6));
    CHECK(AllThereIs(graph, mesh, question).cost_of(found.axes) / least == doctest::Approx(1).epsilon(1e-6));
    return found;
  };
  counts.cut += any_is_cut(check());
  if (mesh.axes.size() > 1) {
    const double apart = AllThereIs(graph, mesh, question).cost_of(one_by_one(graph, mesh, question));
    const double least = AllThereIs(graph, mesh, question).least();
    CHECK(apart / least > 1 - 1e-6);
    counts.together += apart / least > 1 + 1e-6;
  }
  question.cuts_samples = true;
  question.rates.kept = 1e-3;
  const Found free = check();
  counts.whole += any_is_whole(free);
  double all = 0;
  for (const auto& source : graph.sources)
    if (graph.at(source.value).role == ir::Role::Parameter)
      all += static_cast<double>(ir::bytes_of(graph.at(source.value).type));
  if (all == 0) return;
  const double share = std::uniform_real_distribution(1.0 / mesh.size(), 1.0)(random);
  question.most_kept = static_cast<std::int64_t>(std::ceil(all * share));
  counts.limited += check().seconds > free.seconds * (1 + 1e-9);
}

}  // namespace

TEST_CASE("on 100 random small graphs, meshes and limits the cost is what trying everything finds") {
  std::mt19937 random(1);
  Counts one, two, three;
  for (int i = 0; i < 50; ++i) check_all(random, i, {"tensor=2", "tensor=4"}, 4, one);
  for (int i = 0; i < 50; ++i)
    check_all(random, i, {"outer=2 inner=2", "outer=3 inner=2", "outer=2 inner=3", "outer=2 inner=4"}, 3,
              two);
  for (int i = 0; i < 3; ++i) check_all(random, i, {"c=2 b=2 a=2"}, 2, three);
  for (const Counts& counts : {one, two}) {
    CHECK(counts.cut > 10);
    CHECK(counts.whole > 10);
    CHECK(counts.limited > 5);
  }
  CHECK(two.together > 0);
}
