// SPDX-License-Identifier: Apache-2.0
// What find() is held against: all ways to cut a small graph, one after the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/ir/flops.h"
#include "shoal/planner/find.h"
#include "shoal/rewrite/candidates.h"

namespace shoal::planner {

// What a choice for every node and parameter costs, by the words of find.h and changes.h; products are split over as many
// axes as can, and matrices cut, unless the axes may cut the samples instead.
class AllThereIs {
 public:
  AllThereIs(const ir::Graph& graph, const sharding::Mesh& mesh, const Question& question)
      : graph_(graph),
        mesh_(mesh),
        rates_(question.rates),
        cuts_samples_(question.cuts_samples),
        most_kept_(question.most_kept > 0 ? static_cast<double>(question.most_kept)
                                          : std::numeric_limits<double>::infinity()),
        at_(graph.values.size()) {
    const rewrite::Candidates candidates(graph, mesh);
    for (const ir::Node& node : graph.nodes) {
      std::vector<Way> ways = {{}};
      for (std::size_t axis = mesh.axes.size(); axis-- > 0;) add_axis(candidates, node, axis, ways);
      std::erase_if(ways, [&](const Way& way) { return !is_there_everywhere(node, way); });
      add_node(node, ways);
    }
    for (const auto& source : graph.sources)
      if (graph.at(source.value).role == ir::Role::Parameter)
        add_parameter(source.name, source.value);
      else
        at_[source.value.index] = known(sharding::replicated(mesh));
  }

  double least() {
    least_ = std::numeric_limits<double>::infinity();
    choose_parameter(0, 0, 0);
    return least_;
  }
  // Of these alone.
  double cost_of(const std::vector<FoundAxis>& found) {
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      std::erase_if(nodes_[i].ways, [&](const Run& run) {
        for (std::size_t axis = 0; axis < found.size(); ++axis)
          if (found[axis].decided.nodes[i] != run.way[axis]) return true;
        return false;
      });
    for (auto& [name, value, layouts] : parameters_)
      std::erase_if(layouts, [&, &name = name](std::size_t layout) {
        return std::ranges::any_of(found, [&](const FoundAxis& of) {
          return layouts_[layout].placements[of.decided.axis] != of.parameters.at(name);
        });
      });
    return least();
  }

 private:
  using Way = std::vector<rewrite::Choice>;  // by axis, the innermost first
  struct Parameter {
    std::string name;
    ir::ValueId value;
    std::vector<std::size_t> layouts;  // in layouts_
  };
  struct Run {
    Way way;
    std::vector<std::size_t> in;  // in layouts_
    std::size_t out = 0;
    double seconds = 0;
  };
  struct Node {
    std::vector<ir::ValueId> inputs;
    ir::ValueId output;
    std::vector<Run> ways;
  };

  std::size_t known(const sharding::Layout& layout) {
    const auto found = std::ranges::find(layouts_, layout);
    if (found == layouts_.end()) layouts_.push_back(layout);
    return static_cast<std::size_t>(std::ranges::find(layouts_, layout) - layouts_.begin());
  }
  void add_node(const ir::Node& node, const std::vector<Way>& ways) {
    const auto inputs = ir::inputs_of(node);
    Node& of = nodes_.emplace_back(
        Node{.inputs = {inputs.begin(), inputs.end()}, .output = *node.outputs[0], .ways = {}});
    std::size_t most = 0;
    for (const Way& way : ways) most = std::max(most, shared(node, way).second);
    for (const Way& way : ways) {
      const auto [part, axes] = shared(node, way);
      if (node.op == "aten::mm" && axes < most) continue;
      const rewrite::PlacedNode placed = placed_by(way, inputs.size());
      Run run = {.way = way, .in = {}, .out = known(placed.out[0]), .seconds = work_of(node) * part};
      for (const sharding::Layout& layout : placed.in) run.in.push_back(known(layout));
      of.ways.push_back(run);
    }
  }

  void add_axis(const rewrite::Candidates& candidates, const ir::Node& node, std::size_t axis,
                std::vector<Way>& ways) const {
    const std::size_t inputs = ir::inputs_of(node).size();
    const std::vector<sharding::Placement> whole(inputs, sharding::Replicate{});
    std::vector<Way> longer;
    for (const Way& way : ways) {
      rewrite::PlacedNode placed = placed_by(way, inputs);
      std::vector<rewrite::Choice> choices = {{.in = whole, .out = {sharding::Replicate{}}}};
      for (const rewrite::Choice& choice : candidates.choices(node, axis, whole, placed))
        if (candidates.fits(choice, node, axis, placed) && leaves_samples(node, choice) &&
            std::ranges::find(choices, choice) == choices.end())
          choices.push_back(choice);
      for (const rewrite::Choice& choice : choices) {
        longer.push_back(way);
        longer.back().push_back(choice);
      }
    }
    ways = std::move(longer);
  }
  rewrite::PlacedNode placed_by(const Way& way, std::size_t inputs) const {
    rewrite::PlacedNode placed = {.in = std::vector(inputs, sharding::replicated(mesh_)),
                                  .out = {sharding::replicated(mesh_)}};
    for (std::size_t i = 0; i < way.size(); ++i) set(mesh_.axes.size() - 1 - i, way[i], placed);
    return placed;
  }
  bool leaves_samples(const ir::Node& node, const rewrite::Choice& choice) const {
    for (const auto* list : {&choice.in, &choice.out})
      for (std::size_t i = 0; i < list->size(); ++i)
        if (const auto* shard = std::get_if<sharding::Shard>(&(*list)[i])) {
          const bool is_weight = list == &choice.in && node.op == "aten::mm" && i == 1;
          if (!is_weight && !cuts_samples_ && shard->dim == 0) return false;  // dim 0 has the samples
        }
    return true;
  }
  bool is_there_everywhere(const ir::Node& node, const Way& way) const {
    const auto inputs = ir::inputs_of(node);
    const rewrite::PlacedNode placed = placed_by(way, inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (!is_there_everywhere(inputs[i], placed.in[i])) return false;
    return is_there_everywhere(*node.outputs[0], placed.out[0]);
  }
  bool is_there_everywhere(ir::ValueId value, const sharding::Layout& layout) const {
    for (int rank = 0; rank < mesh_.size(); ++rank)
      for (const std::int64_t size : local_shape(mesh_, layout, graph_.at(value).type.shape, rank))
        if (size == 0) return false;
    return true;
  }
  void add_parameter(const std::string& name, ir::ValueId value) {
    std::vector<sharding::Layout> layouts = {sharding::replicated(mesh_)};
    for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      std::vector<sharding::Layout> longer;
      for (sharding::Layout layout : layouts)
        for (const sharding::Placement& placement :
             {sharding::Placement(sharding::Replicate{}), sharding::Placement(sharding::Shard{.dim = 0}),
              sharding::Placement(sharding::Shard{.dim = 1})}) {
          layout.placements[axis] = placement;
          longer.push_back(layout);
        }
      layouts = std::move(longer);
    }
    std::erase_if(layouts,
                  [&](const sharding::Layout& layout) { return !is_there_everywhere(value, layout); });
    std::size_t most = 0;
    for (const sharding::Layout& layout : layouts) most = std::max(most, cuts(layout));
    if (!cuts_samples_)
      std::erase_if(layouts, [&](const sharding::Layout& layout) { return cuts(layout) < most; });
    parameters_.push_back({name, value, {}});
    for (const sharding::Layout& layout : layouts) parameters_.back().layouts.push_back(known(layout));
  }
  static std::size_t cuts(const sharding::Layout& layout) {
    return static_cast<std::size_t>(std::ranges::count_if(layout.placements, rewrite::is_cut));
  }

  double bytes_of(ir::ValueId value) const {
    return static_cast<double>(ir::bytes_of(graph_.at(value).type));
  }
  // The largest part of what an axis cuts.
  double share(const sharding::Placement& placement, ir::ValueId value, std::size_t axis) const {
    const auto* shard = std::get_if<sharding::Shard>(&placement);
    if (shard == nullptr) return 1;
    const double size =
        static_cast<double>(graph_.at(value).type.shape[static_cast<std::size_t>(shard->dim)]);
    return std::ceil(size / mesh_.axes[axis].size) / size;
  }
  // Of all axes but one.
  double share(const sharding::Layout& layout, ir::ValueId value, std::size_t but) const {
    double all = 1;
    for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis)
      if (axis != but) all *= share(layout.placements[axis], value, axis);
    return all;
  }
  std::pair<double, std::size_t> shared(const ir::Node& node,
                                        const Way& way) const {  // and over how many axes
    double all = 1;
    std::size_t axes = 0;
    for (std::size_t i = 0; i < way.size(); ++i) {
      const std::size_t axis = mesh_.axes.size() - 1 - i;
      double least = share(way[i].out[0], *node.outputs[0], axis);
      for (std::size_t j = 0; j < way[i].in.size(); ++j)
        least = std::min(least, share(way[i].in[j], ir::inputs_of(node)[j], axis));
      all *= least;
      axes += least < 1 ? 1 : 0;
    }
    return {all, axes};
  }

  void choose_parameter(std::size_t index, double cost, double kept) {
    if (kept > most_kept_ || cost >= least_) return;
    if (index == parameters_.size()) return choose_node(0, cost);
    const auto& [name, value, layouts] = parameters_[index];
    for (const std::size_t layout : layouts) {
      at_[value.index] = layout;
      const double bytes = bytes_of(value) * share(layouts_[layout], value, mesh_.axes.size());
      choose_parameter(index + 1, cost + bytes * rates_.kept / rates_.link, kept + bytes);
    }
  }
  void choose_node(std::size_t index, double cost) {
    if (index == nodes_.size()) {
      const double paid = pay(graph_.results[0].value, known(sharding::replicated(mesh_)));
      least_ = std::min(least_, cost + paid);
      return;
    }
    if (cost >= least_) return;
    for (const Run& run : nodes_[index].ways) {
      const std::size_t before = changed_.size();
      double more = run.seconds;
      for (std::size_t i = 0; i < run.in.size(); ++i) more += pay(nodes_[index].inputs[i], run.in[i]);
      at_[nodes_[index].output.index] = run.out;
      choose_node(index + 1, cost + more);
      changed_.resize(before);
    }
  }
  // Once for all that read it so.
  double pay(ir::ValueId value, std::size_t wanted) {
    const std::pair how(value.index, wanted);
    if (at_[value.index] == wanted || std::ranges::find(changed_, how) != changed_.end()) return 0;
    changed_.push_back(how);
    const auto [paid, is_new] = paid_.try_emplace({value.index, at_[value.index], wanted});
    if (is_new) paid->second = change(value, layouts_[at_[value.index]], layouts_[wanted], {});
    return paid->second;
  }
  // In whatever order costs the least: each axis at once, or by way of whole, of what the others have cut by then. What
  // an axis further out has cut once more is neither cut nor joined.
  double change(ir::ValueId value, const sharding::Layout& now, const sharding::Layout& wanted,
                std::vector<sharding::Layout> been) const {
    if (now == wanted) return 0;
    if (std::ranges::find(been, now) != been.end()) return std::numeric_limits<double>::infinity();
    been.push_back(now);
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis)
      for (const sharding::Placement& to :
           {wanted.placements[axis], sharding::Placement(sharding::Replicate{})}) {
        const sharding::Placement& from = now.placements[axis];
        bool is_free = from != to;
        for (std::size_t outer = 0; outer < axis; ++outer)
          for (const sharding::Placement* placement : {&from, &to}) {
            const auto *mine = std::get_if<sharding::Shard>(placement),
                       *other = std::get_if<sharding::Shard>(&now.placements[outer]);
            is_free &= mine == nullptr || other == nullptr || mine->dim != other->dim;
          }
        if (!is_free) continue;
        const double bytes = bytes_of(value) * share(now, value, axis);
        const auto sent = rewrite::bytes_sent(from, to, bytes, mesh_.axes[axis].size);
        if (!sent) continue;
        const double copied = bytes / rates_.memory;
        const double step =
            *sent == 0 ? copied / mesh_.axes[axis].size : *sent / rates_.link + rates_.latency + copied;
        sharding::Layout then = now;
        then.placements[axis] = to;
        least = std::min(least, step + change(value, then, wanted, been));
      }
    return least;
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
  std::vector<sharding::Layout> layouts_;  // all that are met
  std::vector<Node> nodes_;
  std::vector<Parameter> parameters_;
  std::vector<std::size_t> at_;                                 // by value, in layouts_
  std::vector<std::pair<std::uint32_t, std::size_t>> changed_;  // values, and what to
  std::map<std::tuple<std::uint32_t, std::size_t, std::size_t>, double> paid_;
  double least_ = 0;
};

}  // namespace shoal::planner
