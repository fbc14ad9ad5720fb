// SPDX-License-Identifier: Apache-2.0
// What is found, against all there is.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/ir/flops.h"
#include "shoal/ir/text.h"
#include "shoal/planner/find.h"
#include "shoal/rewrite/candidates.h"

using namespace shoal;
using namespace shoal::planner;
using rewrite::Choice;
using sharding::Placement;

namespace {

// A graph of a few products, sums and activations over matrices of one batch.
ir::Graph drawn(std::mt19937& random) {
  const auto any = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  const std::vector<std::int64_t> widths = {8, 12, 16};
  ir::Graph graph;
  std::vector<ir::ValueId> values = {
      graph.add_source(ir::Role::Input, "x", ir::contiguous(DType::Float32, {4, widths[any(3)]}))};
  const int nodes = 2 + any(3);
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

// What a choice for every node and parameter costs, by the words of find.h; products are split, and matrices cut unless
// the axis may cut the samples instead.
class AllThereIs {
 public:
  AllThereIs(const ir::Graph& graph, const sharding::Mesh& mesh, const Question& question)
      : graph_(graph),
        mesh_(mesh),
        rates_(question.rates),
        cuts_samples_(question.cuts_samples),
        most_kept_(question.most_kept > 0 ? static_cast<double>(question.most_kept)
                                          : std::numeric_limits<double>::infinity()),
        ranks_(mesh.axes[0].size),
        at_(graph.values.size()) {
    const rewrite::Candidates candidates(graph, mesh);
    for (const ir::Node& node : graph.nodes) {
      const std::size_t inputs = ir::inputs_of(node).size();
      std::vector<Choice> choices = {
          {.in = std::vector<Placement>(inputs, sharding::Replicate{}), .out = {sharding::Replicate{}}}};
      const rewrite::PlacedNode whole = {.in = std::vector(inputs, sharding::replicated(mesh)),
                                         .out = {sharding::replicated(mesh)}};
      for (const Choice& choice :
           candidates.choices(node, 0, std::vector<Placement>(inputs, sharding::Replicate{}), whole)) {
        bool is_good = candidates.fits(choice, node, 0, whole);
        for (const auto* list : {&choice.in, &choice.out})
          for (std::size_t i = 0; i < list->size(); ++i)
            if (const auto* shard = std::get_if<sharding::Shard>(&(*list)[i])) {
              const bool is_weight = list == &choice.in && node.op == "aten::mm" && i == 1;
              is_good &= is_weight || cuts_samples_ || shard->dim != 0;  // dim 0 has the samples
            }
        if (is_good && std::ranges::find(choices, choice) == choices.end()) choices.push_back(choice);
      }
      choices_.push_back(choices);
    }
  }

  double least() {
    for (const auto& source : graph_.sources)
      if (graph_.at(source.value).role == ir::Role::Parameter)
        parameters_.push_back(source.value);
      else
        at_[source.value.index] = sharding::Replicate{};
    choose_parameter(0, 0, 0);
    return least_;
  }

 private:
  double bytes_of(ir::ValueId value) const {
    return static_cast<double>(ir::bytes_of(graph_.at(value).type));
  }

  void choose_parameter(std::size_t index, double cost, double kept) {
    if (kept > most_kept_) return;
    if (index == parameters_.size()) return choose_node(0, cost);
    const ir::ValueId value = parameters_[index];
    const auto choose = [&](const Placement& placement, double bytes) {
      at_[value.index] = placement;
      choose_parameter(index + 1, cost + bytes * rates_.kept / rates_.link, kept + bytes);
    };
    for (const int dim : {0, 1}) choose(sharding::Shard{.dim = dim}, bytes_of(value) / ranks_);
    if (cuts_samples_) choose(sharding::Replicate{}, bytes_of(value));
  }
  void choose_node(std::size_t index, double cost) {
    if (index == graph_.nodes.size()) {
      const ir::ValueId result = graph_.results[0].value;
      const auto paid = pay(result, sharding::Replicate{});
      if (paid) least_ = std::min(least_, cost + *paid);
      return;
    }
    if (cost >= least_) return;
    const ir::Node& node = graph_.nodes[index];
    const auto inputs = ir::inputs_of(node);
    for (const Choice& choice : choices_[index]) {
      if (node.op == "aten::mm" && !choice.splits()) continue;
      const auto before = changed_;
      double more = work_of(node) * (choice.splits() ? 1.0 / ranks_ : 1.0);
      bool is_there = true;
      for (std::size_t i = 0; i < inputs.size() && is_there; ++i) {
        const auto paid = pay(inputs[i], choice.in[i]);
        is_there = paid.has_value();
        if (paid) more += *paid;
      }
      at_[node.outputs[0]->index] = choice.out[0];
      if (is_there) choose_node(index + 1, cost + more);
      changed_ = before;
    }
  }
  // Once for all that read it so.
  std::optional<double> pay(ir::ValueId value, const Placement& wanted) {
    const Placement& now = at_[value.index];
    if (now == wanted || !changed_.insert({value.index, to_text(wanted)}).second) return 0;
    const auto sent = rewrite::bytes_sent(now, wanted, bytes_of(value), ranks_);
    if (!sent) return std::nullopt;
    const double copied = bytes_of(value) / rates_.memory;
    return *sent == 0 ? copied / ranks_ : *sent / rates_.link + rates_.latency + copied;
  }
  double work_of(const ir::Node& node) const {
    double bytes = 0;
    for (const ir::ValueId input : ir::inputs_of(node)) bytes += bytes_of(input);
    bytes += bytes_of(*node.outputs[0]);
    return std::max(ir::flops_of(graph_, node) / rates_.flops, bytes / rates_.memory);
  }

  const ir::Graph& graph_;
  const sharding::Mesh& mesh_;
  const Rates rates_;
  const bool cuts_samples_;
  const double most_kept_;
  const int ranks_;
  std::vector<std::vector<Choice>> choices_;
  std::vector<ir::ValueId> parameters_;
  std::vector<Placement> at_;
  std::set<std::pair<std::uint32_t, std::string>> changed_;
  double least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

TEST_CASE("on 100 random small graphs, meshes and limits the cost is what trying everything finds") {
  std::mt19937 random(1);
  int cut = 0, whole = 0, limited = 0;
  for (int i = 0; i < 100; ++i) {
    const ir::Graph graph = drawn(random);
    const auto mesh = sharding::mesh_from_text(i % 2 == 0 ? "tensor=2" : "tensor=4");
    Rates rates;
    rates.latency = i % 3 == 0 ? 1e-9 : 1e-7;
    rates.flops = i % 5 == 0 ? 1e8 : 5e9;
    Question question = {.batch_dims = {{"x", 0}}, .rates = rates, .gap = 0};
    const auto check = [&] {
      const Found found = find(graph, mesh, question);
      CHECK(found.seconds / AllThereIs(graph, mesh, question).least() == doctest::Approx(1).epsilon(1e-6));
      return found;
    };
    const auto is_cut = [](const auto& each) { return rewrite::is_cut(each.second); };
    CAPTURE(i);
    CAPTURE(ir::to_text(graph));
    cut += std::ranges::any_of(check().parameters, is_cut);
    question.cuts_samples = true;
    question.rates.kept = 1e-3;
    const Found free = check();
    whole += !std::ranges::all_of(free.parameters, is_cut);
    double all = 0;
    for (const auto& source : graph.sources)
      if (graph.at(source.value).role == ir::Role::Parameter)
        all += static_cast<double>(ir::bytes_of(graph.at(source.value).type));
    if (all == 0) continue;
    const double share = std::uniform_real_distribution(1.0 / mesh.axes[0].size, 1.0)(random);
    question.most_kept = static_cast<std::int64_t>(std::ceil(all * share));
    limited += check().seconds > free.seconds * (1 + 1e-9);
  }
  CHECK(cut > 20);
  CHECK(whole > 20);
  CHECK(limited > 10);
}
