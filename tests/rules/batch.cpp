// SPDX-License-Identifier: Apache-2.0
#include "batch.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "shoal/ir/text.h"
#include "shoal/rewrite/decompose.h"
#include "shoal/sharding/ops.h"
#include "shoal/sharding/rules.h"

namespace shoal {

using namespace shoal::sharding;

namespace {

// One way to go on: what the outputs become, and how many tensors have to be made whole for it.
struct Way {
  std::vector<Placement> out;
  int num_made_whole = 0;
};

class Walk {
 public:
  Walk(const ir::Graph& graph, std::int64_t rows) : graph_(graph), placements_(graph.values.size()) {
    for (const ir::Source& source : graph.sources) {
      const ir::Value& value = graph.at(source.value);
      if (value.role == ir::Role::Input && !value.type.shape.empty() && value.type.shape[0] == rows)
        placements_[source.value.index] = Shard{.dim = 0};
    }
  }

  // Nodes that nothing fits; their outputs are whole.
  std::vector<ir::NodeId> run() {
    std::vector<ir::NodeId> stuck;
    for (std::uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      const ir::Node& node = graph_.nodes[i];
      if (node.phase == ir::Phase::Update) continue;
      const auto way = best_way(node);
      if (!way) stuck.push_back({i});
      for (std::size_t k = 0; way && k < node.outputs.size(); ++k)
        if (node.outputs[k]) placements_[node.outputs[k]->index] = way->out[k];
    }
    return stuck;
  }

 private:
  const Shape& shape(ir::ValueId value) const { return graph_.at(value).type.shape; }

  std::optional<Way> best_way(const ir::Node& node) const {
    const auto inputs = ir::inputs_of(node);
    if (const OpRule* rule = find_rule(node.op); rule != nullptr && rule->is_reshape)
      if (const auto* cut = std::get_if<Shard>(&placements_[inputs[0].index])) return way_through(node, *cut);
    std::vector<Strategy> all = strategies(graph_, node);
    all.push_back({.in = std::vector<Placement>(inputs.size(), Replicate{}),
                   .out = std::vector<Placement>(node.outputs.size(), Replicate{})});
    std::optional<Way> best;
    for (const Strategy& strategy : all) {
      const auto way = strategy.in_parts ? std::nullopt : way_along(inputs, strategy);
      if (way && (!best || way->num_made_whole < best->num_made_whole)) best = way;
    }
    return best;
  }

  std::optional<Way> way_along(const std::vector<ir::ValueId>& inputs, const Strategy& strategy) const {
    // Outer and unit are for any factor, the same on all its dims.
    std::optional<Shard> inside;
    Way way = {.out = strategy.out};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Placement& has = placements_[inputs[i].index];
      if (std::holds_alternative<Partial>(has) && strategy.in[i] != has) ++way.num_made_whole;
      const auto* cut = std::get_if<Shard>(&has);
      if (cut == nullptr) continue;
      if (strategy.in[i] == Placement(Replicate{}) && graph_.at(inputs[i]).type.dtype == DType::Bool) {
        way.num_made_whole += 1000;  // anything else is better
        continue;
      }
      const auto* wanted = std::get_if<Shard>(&strategy.in[i]);
      if (wanted == nullptr || wanted->dim != cut->dim) return std::nullopt;
      if (inside && (inside->outer != cut->outer || inside->unit != cut->unit)) return std::nullopt;
      inside = *cut;
    }
    // Nothing is cut that is not cut already.
    const auto is_cut = [](const Placement& placement) { return std::holds_alternative<Shard>(placement); };
    if (!inside && (std::ranges::any_of(strategy.in, is_cut) || std::ranges::any_of(way.out, is_cut)))
      return std::nullopt;
    for (Placement& placement : way.out)
      if (auto* shard = std::get_if<Shard>(&placement)) {
        shard->outer = inside->outer;
        shard->unit = inside->unit;
      }
    return way;
  }

  // What is cut stays cut: the view of the parts, if there is one.
  std::optional<Way> way_through(const ir::Node& node, const Shard& cut) const {
    const auto seen = through_view(shape(ir::inputs_of(node)[0]), shape(node.outputs[0].value()), cut);
    return seen ? std::optional(Way{.out = {*seen}}) : std::nullopt;
  }

  const ir::Graph& graph_;
  std::vector<Placement> placements_;
};

}  // namespace

std::vector<std::string> nodes_that_gather(ir::Graph graph, std::int64_t rows) {
  while (true) {
    std::set<ir::NodeId> simpler;
    std::vector<std::string> texts;
    for (const ir::NodeId id : Walk(graph, rows).run()) {
      if (rewrite::can_decompose(graph, graph.at(id)))
        simpler.insert(id);
      else
        texts.push_back(ir::to_text(graph, graph.at(id)));
    }
    if (simpler.empty()) return texts;
    graph = rewrite::decompose(std::move(graph), simpler);
  }
}

}  // namespace shoal
