// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/stages.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ir/own_ops.h"
#include "shoal/ir/rebuild.h"
#include "shoal/ir/views.h"
#include "shoal/rewrite/cuts.h"
#include "shoal/rewrite/dead_code.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::Phase;
using ir::Role;
using ir::ValueId;

std::vector<int> Stages::of_rank(int rank) const {
  std::vector<int> stages;
  for (std::size_t stage = 0; stage < rank_of_stage.size(); ++stage)
    if (rank_of_stage[stage] == rank) stages.push_back(static_cast<int>(stage));
  return stages;
}

namespace {

class Staging {
 public:
  Staging(const Graph& graph, std::vector<int> rank_of_stage)
      : old_(graph),
        count_(static_cast<int>(rank_of_stage.size())),
        rank_of_stage_(std::move(rank_of_stage)),
        in_(graph.values.size()),
        made_again_(graph.values.size()) {
    made_.form = graph.form;
  }

  std::pair<Graph, Stages> run(const std::vector<std::string>& begins) {
    return cut(
        [&](const Cuts& cuts) { return begins.empty() ? cuts.best(count_) : cuts.at(begins, count_); });
  }
  std::pair<Graph, Stages> run_marked() {
    return cut([&](const Cuts& cuts) { return cuts.marked(count_); });
  }

 private:
  template <class Choose>
  std::pair<Graph, Stages> cut(const Choose& choose) {
    find_free();
    const Cuts cuts(old_, is_free_);
    const std::vector<std::size_t> ordinals = choose(cuts);
    give_forward(cuts, ordinals);
    give_backward();
    copy_all();
    Counts counts;
    Graph graph = remove_dead_code(std::move(made_), counts);
    Stages stages{cuts.names_of(ordinals), rank_of_stage_, owners_in(graph)};
    return {std::move(graph), std::move(stages)};
  }

  // --- What every stage makes for itself.

  bool has_written_buffer(ValueId source) const {
    for (const auto& each : old_.sources)
      if (each.value == source)
        return std::ranges::any_of(old_.results, [&](const ir::Result& result) {
          return result.role == Role::Buffer && result.name == each.name;
        });
    return false;
  }

  // Views, where they leave no element out, and what is made of no parameter.
  void find_free() {
    is_free_.resize(old_.nodes.size());
    std::vector<bool> of_none(old_.values.size());  // depends on no parameter, and on nothing that is drawn
    for (const auto& source : old_.sources) {
      const Role role = old_.at(source.value).role;
      of_none[source.value.index] = role == Role::Input || role == Role::Constant ||
                                    (role == Role::Buffer && !has_written_buffer(source.value));
    }
    for (std::size_t i = 0; i < old_.nodes.size(); ++i) {
      const Node& node = old_.nodes[i];
      if (node.phase == Phase::Update || node.outputs.empty()) continue;
      const auto inputs = ir::inputs_of(node);
      const ir::OwnOp* own = ir::find_own_op(node.op);
      const bool draws = own != nullptr && own->kind == ir::OwnOp::Kind::Random;
      const bool needs_none = node.phase == Phase::Forward && !draws &&
                              work_of(old_, node).value_or(1) == 0 &&
                              std::ranges::all_of(inputs, [&](ValueId in) { return of_none[in.index]; });
      if (needs_none)
        for (const auto& output : node.outputs)
          if (output) of_none[output->index] = true;
      is_free_[i] = needs_none || is_whole_view(node, inputs);
    }
  }
  bool is_whole_view(const Node& node, const std::vector<ValueId>& inputs) const {
    return inputs.size() == 1 && node.outputs.size() == 1 && node.outputs[0] && ir::is_view(node.op) &&
           ir::num_elements(old_.at(inputs[0]).type) == ir::num_elements(old_.at(*node.outputs[0]).type);
  }

  // --- Which stage.

  void give_forward(const Cuts& cuts, const std::vector<std::size_t>& begins) {
    stage_.assign(old_.nodes.size(), -1);
    for (std::size_t i = 0; i < cuts.nodes().size(); ++i) {
      const auto stage = std::ranges::upper_bound(begins, i) - begins.begin();
      stage_[cuts.nodes()[i]] = static_cast<int>(stage);
      stages_of_module_[old_.nodes[cuts.nodes()[i]].module].insert(static_cast<int>(stage));
    }
  }

  // The stage of the forward that it belongs to: its module's, or where that has several, the last of what
  // it reads of forward. And none after that of a gradient that it reads.
  void give_backward() {
    for (std::size_t i = 0; i < old_.nodes.size(); ++i) {
      const Node& node = old_.nodes[i];
      if (node.phase != Phase::Backward) continue;
      int own = -1, last = count_ - 1;
      for (const ValueId input : ir::inputs_of(node)) {
        const auto& producer = old_.at(input).producer;
        if (!producer) continue;
        const int there = stage_[producer->index];
        if (old_.at(*producer).phase == Phase::Backward)
          last = std::min(last, there);
        else if (!is_free_[producer->index])
          own = std::max(own, there);
      }
      const auto module = stages_of_module_.find(node.module);
      if (module != stages_of_module_.end() && module->second.size() == 1) own = *module->second.begin();
      stage_[i] = own == -1 ? last : std::min(own, last);
    }
  }

  // --- The graph.

  void copy_all() {
    for (const auto& [value, name, fingerprint] : old_.sources)
      in_.set(value, made_.add_source(old_.at(value).role, name, old_.at(value).type, fingerprint));
    for (std::size_t i = 0; i < old_.nodes.size(); ++i) {
      const Node& node = old_.nodes[i];
      const int stage = std::max(stage_[i], 0);
      const auto inputs = ir::inputs_of(node);
      std::vector<ValueId> from;
      for (const ValueId input : inputs) from.push_back(there(input, stage, node.phase));
      add(node, stage, from, [&](ValueId output, ValueId made) { in_.set(output, made); });
    }
    for (const auto& [role, name, value] : old_.results) made_.add_result(role, name, in_(value));
  }

  // The value, or what a stage makes of it for itself.
  ValueId there(ValueId value, int stage, Phase phase) {
    const auto& producer = old_.at(value).producer;
    if (!producer || phase == Phase::Update || !is_free_[producer->index] || stage_[producer->index] == stage)
      return in_(value);
    auto& again = made_again_[value.index];
    if (const auto known = again.find(stage); known != again.end()) return known->second;
    const Node& node = old_.at(*producer);
    std::vector<ValueId> from;
    for (const ValueId input : ir::inputs_of(node)) from.push_back(there(input, stage, phase));
    add(node, stage, from,
        [&](ValueId output, ValueId made) { made_again_[output.index].emplace(stage, made); });
    return again.at(stage);
  }

  template <class Made>
  void add(const Node& node, int stage, const std::vector<ValueId>& from, const Made& set) {
    std::size_t next = 0;
    Node copy = ir::with_inputs(node, [&](ValueId) { return from[next++]; });
    copy.stage = stage;
    copy.outputs.clear();
    std::vector<std::optional<ir::TensorType>> types;
    for (const auto& output : node.outputs)
      types.push_back(output ? std::optional(old_.at(*output).type) : std::nullopt);
    const auto made = made_.at(made_.add_node(std::move(copy), types)).outputs;
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!made[i]) continue;
      made_.values[made[i]->index].role = old_.at(*node.outputs[i]).role;
      set(*node.outputs[i], *made[i]);
    }
  }

  // --- Whose the parameters are.

  std::map<std::string, int> owners_in(const Graph& graph) const {
    std::vector<std::set<int>> readers(graph.values.size());
    for (const Node& node : graph.nodes)
      if (node.phase != Phase::Update)
        for (const ValueId input : ir::inputs_of(node)) readers[input.index].insert(node.stage);
    for (const auto& result : graph.results)
      if (const auto& producer = graph.at(result.value).producer; result.role == Role::Gradient && producer)
        for (const auto& source : graph.sources)
          if (source.name == result.name && graph.at(source.value).role == Role::Parameter)
            readers[source.value.index].insert(graph.at(*producer).stage);
    std::map<std::string, int> owners;
    for (const auto& source : graph.sources) {
      const auto& [type, role, producer] = graph.at(source.value);
      if (role != Role::Parameter) continue;
      const auto& stages = readers[source.value.index];
      std::set<int> ranks;
      for (const int stage : stages) ranks.insert(rank_of_stage_[static_cast<std::size_t>(stage)]);
      const bool is_shared = ranks.size() > 1 || type.shape.empty();
      owners.emplace(source.name, is_shared ? Stages::kShared : stages.empty() ? 0 : *stages.begin());
    }
    return owners;
  }

  const Graph& old_;
  const int count_;
  const std::vector<int> rank_of_stage_;
  std::vector<bool> is_free_;  // by node: each stage may make it for itself
  std::vector<int> stage_;     // by node; of the update: none
  std::map<std::string, std::set<int>> stages_of_module_;
  Graph made_;
  ir::Mapped in_;
  std::vector<std::map<int, ValueId>> made_again_;  // by value of the old graph, and stage
};

}  // namespace

std::pair<Graph, Stages> assign_stages(const Graph& graph, std::vector<int> rank_of_stage,
                                       const std::vector<std::string>& begins) {
  return Staging(graph, std::move(rank_of_stage)).run(begins);
}

std::pair<Graph, Stages> assign_marked(const Graph& graph, std::vector<int> rank_of_stage) {
  return Staging(graph, std::move(rank_of_stage)).run_marked();
}

}  // namespace shoal::rewrite
