// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/ways.h"

#include <algorithm>
#include <utility>

namespace shoal::planner {

using ir::Role;
using rewrite::Choice;
using sharding::Mesh;
using sharding::Placement;
using sharding::Replicate;
using sharding::Shape;
using sharding::Shard;

static constexpr std::size_t kMostCuts = 16;  // of a value

Ways::Ways(const ir::Graph& graph, const Mesh& mesh, const Question& question, const Classes& classes)
    : graph_(graph),
      mesh_(mesh),
      question_(question),
      classes_(classes),
      candidates_(graph, mesh),
      ways_(classes.nodes.size(), {Way{}}) {
  find_readers();
  for (const AskedAxis& asked : question.axes) {
    const std::size_t values = classes.values.size();
    axes_.push_back({.axis = asked.axis,
                     .ranks = mesh.axes[asked.axis].size,
                     .cuts = std::vector<std::vector<Placement>>(values),
                     .samples = std::vector<std::vector<Shard>>(values)});
    follow_samples(axes_.back());
    find_ways(axes_.size() - 1);
    if (are_too_many()) return;
  }
}

const Shape& Ways::shape_of(std::size_t value) const {
  return graph_.at(classes_.values[value].first).type.shape;
}

void Ways::find_readers() {
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (classes_.of_node[i] == kNone) continue;
    const auto inputs = ir::inputs_of(graph_.nodes[i]);
    for (std::size_t j = 0; j < inputs.size(); ++j)
      readers_[classes_.of_value[inputs[j].index]][{classes_.of_node[i], j}].insert(inputs[j].index);
  }
  for (const auto& [value, readers] : readers_)
    for (const auto& [reader, values] : readers) read_by_[reader].push_back(value);
}

rewrite::PlacedNode Ways::further_in(const ir::Node& node, const Way& way) const {
  rewrite::PlacedNode placed = {.in = std::vector(ir::inputs_of(node).size(), sharding::replicated(mesh_)),
                                .out = std::vector(node.outputs.size(), sharding::replicated(mesh_))};
  const auto index = static_cast<std::size_t>(&node - graph_.nodes.data());
  for (const FoundAxis& other : question_.further_in)
    set(other.decided.axis, other.decided.nodes[index], placed);
  for (std::size_t asked = 0; asked < way.size(); ++asked) set(axes_[asked].axis, way[asked], placed);
  return placed;
}
sharding::Layout Ways::in_of(const Way& way, std::size_t input) const {
  sharding::Layout layout = sharding::replicated(mesh_);
  for (std::size_t asked = 0; asked < way.size(); ++asked)
    layout.placements[axes_[asked].axis] = way[asked].in[input];
  return layout;
}
sharding::Layout Ways::out_of(const Way& way, std::size_t output) const {
  sharding::Layout layout = sharding::replicated(mesh_);
  for (std::size_t asked = 0; asked < way.size(); ++asked)
    layout.placements[axes_[asked].axis] = way[asked].out[output];
  return layout;
}

Placement Ways::plain(const Placement& placement, const Shape& shape, std::size_t asked) const {
  const auto* shard = std::get_if<Shard>(&placement);
  if (shard == nullptr || !shard->weights.empty()) return placement;
  const std::int64_t block = shape[static_cast<std::size_t>(shard->dim)] / shard->outer;
  std::int64_t parts = 1;  // also where axes further in have cut that dim
  for (std::size_t i = 0; i <= asked; ++i) parts *= axes_[i].ranks;
  for (const FoundAxis& other : question_.further_in) parts *= mesh_.axes[other.decided.axis].size;
  Shard plain = *shard;
  if (block % (parts * shard->unit) == 0) plain.unit = 1;
  return plain;
}
Choice Ways::plain(Choice choice, const ir::Node& node, std::size_t asked) const {
  const auto inputs = ir::inputs_of(node);
  for (std::size_t i = 0; i < choice.in.size(); ++i)
    choice.in[i] = plain(choice.in[i], graph_.at(inputs[i]).type.shape, asked);
  for (std::size_t i = 0; i < choice.out.size(); ++i)
    if (node.outputs[i]) choice.out[i] = plain(choice.out[i], graph_.at(*node.outputs[i]).type.shape, asked);
  return choice;
}

double Ways::share_of(const Placement& placement, const Shape& shape, std::size_t axis) const {
  const auto* shard = std::get_if<Shard>(&placement);
  if (shard == nullptr) return 1;
  const std::int64_t ranks = mesh_.axes[axis].size;
  const std::int64_t units = shape[static_cast<std::size_t>(shard->dim)] / (shard->outer * shard->unit);
  const std::int64_t most = (units + ranks - 1) / ranks;
  return units < ranks ? 1 : static_cast<double>(most) / static_cast<double>(units);
}
double Ways::share_of(const Choice& choice, const ir::Node& node, std::size_t axis) const {
  const auto inputs = ir::inputs_of(node);
  double share = 1;
  for (std::size_t i = 0; i < choice.in.size(); ++i)
    share = std::min(share, share_of(choice.in[i], graph_.at(inputs[i]).type.shape, axis));
  for (std::size_t i = 0; i < choice.out.size(); ++i)
    if (node.outputs[i])
      share = std::min(share, share_of(choice.out[i], graph_.at(*node.outputs[i]).type.shape, axis));
  return share;
}
double Ways::share_of(const sharding::Layout& layout, const Shape& shape) const {
  double share = 1;
  for (const Axis& of : axes_) share *= share_of(layout.placements[of.axis], shape, of.axis);
  return share;
}
double Ways::share_of(const Way& way, const ir::Node& node) const {
  double share = 1;
  for (std::size_t asked = 0; asked < way.size(); ++asked)
    share *= share_of(way[asked], node, axes_[asked].axis);
  return share;
}
std::size_t Ways::num_splits(const Way& way, const ir::Node& node) const {
  std::size_t number = 0;
  for (std::size_t asked = 0; asked < way.size(); ++asked)
    number += share_of(way[asked], node, axes_[asked].axis) < 1 ? 1 : 0;
  return number;
}
double Ways::left_of(std::size_t value) const {
  const ValueClass& of = classes_.values[value];
  double share = 1;
  for (const auto& [decided, parameters] : question_.further_in) {
    if (of.node != kNone) {
      const Choice& choice = decided.nodes[classes_.nodes[of.node].first];
      share *= share_of(choice.out[of.output], shape_of(value), decided.axis);
    } else if (const auto known = parameters.find(name_of(value)); known != parameters.end()) {
      share *= share_of(known->second, shape_of(value), decided.axis);
    }
  }
  return share;
}
double Ways::left_of(const ir::Node& node) const {
  const auto index = static_cast<std::size_t>(&node - graph_.nodes.data());
  double share = 1;
  for (const FoundAxis& other : question_.further_in)
    share *= share_of(other.decided.nodes[index], node, other.decided.axis);
  return share;
}
std::string Ways::name_of(std::size_t value) const {
  const ir::ValueId first = classes_.values[value].first;
  const auto source = std::ranges::find(graph_.sources, first, &ir::Source::value);
  return source != graph_.sources.end() && graph_.at(first).role == Role::Parameter ? source->name : "";
}

// Whether it cuts what holds the samples, and may not.
bool Ways::cuts_samples(const Axis& of, const Placement& placement, std::size_t value) const {
  const auto* shard = std::get_if<Shard>(&placement);
  if (shard == nullptr) return false;
  for (const Shard& samples : of.samples[value]) {
    if (samples.dim != shard->dim) continue;
    if (question_.data_ranks > 1)
      return true;  // an axis further out cuts that dim, which this one could not join
    if (question_.cuts_samples || !question_.split.empty()) return false;
    const std::int64_t number =
        shape_of(value)[static_cast<std::size_t>(samples.dim)] / (samples.outer * samples.unit);
    if (shard->outer >= samples.outer && shard->outer < samples.outer * number) return true;
  }
  return false;
}
bool Ways::leaves_some_without(const Axis& of, const Placement& placement, const Shape& shape) {
  const auto* shard = std::get_if<Shard>(&placement);
  return shard != nullptr &&
         shape[static_cast<std::size_t>(shard->dim)] / (shard->outer * shard->unit) < of.ranks;
}
bool Ways::is_somewhere_empty(const sharding::Layout& layout, const Shape& shape) const {
  return std::ranges::any_of(corners(mesh_, layout), [&](int rank) {
    return std::ranges::count(local_shape(mesh_, layout, shape, rank), 0) > 0;
  });
}
bool Ways::leaves_some_without(const sharding::Layout& layout, const Shape& shape) const {
  for (const Axis& of : axes_)
    if (leaves_some_without(of, layout.placements[of.axis], shape)) return true;
  if (axes_.size() == 1) return false;
  return !misfit(mesh_, layout, shape).empty() || is_somewhere_empty(layout, shape);
}

// Of what axes further in leave.
bool Ways::leaves_some_without(const Axis& of, const rewrite::PlacedNode& placed,
                               const ir::Node& node) const {
  if (question_.further_in.empty() && &of == axes_.data()) return false;
  const auto is_empty = [&](const sharding::Layout& layout, ir::ValueId value) {
    const Shape& shape = graph_.at(value).type.shape;
    return rewrite::is_cut(layout.placements[of.axis]) && misfit(mesh_, layout, shape).empty() &&
           is_somewhere_empty(layout, shape);
  };
  const auto inputs = ir::inputs_of(node);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (is_empty(placed.in[i], inputs[i])) return true;
  for (std::size_t i = 0; i < node.outputs.size(); ++i)
    if (node.outputs[i] && is_empty(placed.out[i], *node.outputs[i])) return true;
  return false;
}

bool Ways::is_good(std::size_t asked, const Way& further_in, const Choice& choice, std::size_t index) const {
  const Axis& of = axes_[asked];
  const ir::Node& node = node_of(index);
  const auto inputs = ir::inputs_of(node);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (leaves_some_without(of, choice.in[i], graph_.at(inputs[i]).type.shape)) return false;
    for (const std::size_t value : read_by_.at({index, i}))
      if (cuts_samples(of, choice.in[i], value)) return false;
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (!node.outputs[i]) continue;
    if (leaves_some_without(of, choice.out[i], graph_.at(*node.outputs[i]).type.shape)) return false;
    if (cuts_samples(of, choice.out[i], classes_.of_value[node.outputs[i]->index])) return false;
  }
  const rewrite::PlacedNode left = this->further_in(node, further_in);
  rewrite::PlacedNode placed = left;
  set(of.axis, choice, placed);
  return !leaves_some_without(of, placed, node) && candidates_.fits(choice, node, of.axis, left);
}

// Where the samples of the batch are, in each value that has them.
void Ways::follow_samples(Axis& of) {
  for (const auto& source : graph_.sources)
    if (const auto dim = question_.batch_dims.find(source.name);
        dim != question_.batch_dims.end() && graph_.at(source.value).role == Role::Input)
      of.samples[classes_.of_value[source.value.index]] = {Shard{.dim = dim->second}};
  bool is_done = false;
  while (!is_done) {
    is_done = true;
    for (std::size_t i = 0; i < classes_.nodes.size(); ++i) is_done &= !follow_samples(of, i);
  }
}
bool Ways::follow_samples(Axis& of, std::size_t index) {
  const ir::Node& node = node_of(index);
  const auto inputs = ir::inputs_of(node);
  bool is_new = false;
  const auto add = [&](std::size_t output, const Shard& shard) {
    auto& known = of.samples[classes_.of_value[node.outputs[output]->index]];
    if (known.size() >= kMostCuts || std::ranges::find(known, shard) != known.end()) return;
    known.push_back(shard);
    is_new = true;
  };
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (const std::size_t value : read_by_.at({index, i}))
      for (const Shard& samples : of.samples[value]) {
        std::vector<Placement> seen(inputs.size(), Replicate{});
        seen[i] = samples;
        bool is_followed = false;
        for (const Choice& choice : candidates_.choices(node, of.axis, seen, further_in(node))) {
          if (choice.in[i] != seen[i]) continue;
          is_followed = true;
          for (std::size_t j = 0; j < choice.out.size(); ++j)
            if (const auto* shard = std::get_if<Shard>(&choice.out[j]); shard != nullptr && node.outputs[j])
              add(j, *shard);
        }
        if (is_followed) continue;
        for (std::size_t j = 0; j < node.outputs.size(); ++j)  // an op that needs the whole batch
          if (node.outputs[j] && graph_.at(*node.outputs[j]).type.shape == shape_of(value)) add(j, samples);
      }
  return is_new;
}

void Ways::add_cut(Axis& of, std::size_t value, const Placement& placement) {
  auto& known = of.cuts[value];
  if (!rewrite::is_cut(placement) || known.size() >= kMostCuts) return;
  if (std::ranges::find(known, placement) == known.end()) known.push_back(placement);
}
void Ways::add_way(std::size_t asked, std::size_t index, const Way& further_in, const Choice& found) {
  const ir::Node& node = node_of(index);
  Way way = further_in;
  const Choice& choice = way.emplace_back(plain(found, node, asked));
  auto& known = ways_[index];
  if (std::ranges::find(known, way) != known.end() || !is_good(asked, further_in, choice, index)) return;
  for (std::size_t i = 0; i < choice.in.size(); ++i)
    for (const std::size_t value : read_by_.at({index, i})) add_cut(axes_[asked], value, choice.in[i]);
  for (std::size_t i = 0; i < choice.out.size(); ++i)
    if (node.outputs[i]) add_cut(axes_[asked], classes_.of_value[node.outputs[i]->index], choice.out[i]);
  known.push_back(std::move(way));
  ++num_ways_;
}

void Ways::find_ways(std::size_t asked) {
  further_in_ = std::exchange(ways_, std::vector<std::vector<Way>>(classes_.nodes.size()));
  num_ways_ = 0;
  for (std::size_t i = 0; i < classes_.nodes.size() && !are_too_many(); ++i) {
    const ir::Node& node = node_of(i);
    const std::size_t num_inputs = ir::inputs_of(node).size();
    const std::vector<Placement> seen(num_inputs, Replicate{});
    for (const Way& way : further_in_[i]) {
      ++num_ways_;
      ways_[i].push_back(way);
      ways_[i].back().push_back({.in = std::vector<Placement>(num_inputs, Replicate{}),
                                 .out = std::vector<Placement>(node.outputs.size(), Replicate{})});
      for (const Choice& choice : candidates_.choices(node, axes_[asked].axis, seen, further_in(node, way)))
        add_way(asked, i, way, choice);
    }
  }
  for (const auto& [name, placement] : question_.axes[asked].parameters)
    for (const auto& source : graph_.sources)
      if (source.name == name && graph_.at(source.value).role == Role::Parameter)
        add_cut(axes_[asked], classes_.of_value[source.value.index],
                plain(placement, graph_.at(source.value).type.shape, asked));
  // What is known of a node's tensors when it is looked at.
  std::vector<std::size_t> seen(classes_.nodes.size());
  for (bool is_done = false; !is_done && !are_too_many();) {
    is_done = true;
    const auto look = [&](std::size_t index) {
      if (are_too_many()) return;
      if (const std::size_t known = num_cuts_around(axes_[asked], index); known != seen[index]) {
        seen[index] = known;
        take_cuts(asked, index);
        is_done = false;
      }
    };
    for (std::size_t i = 0; i < classes_.nodes.size(); ++i) look(i);
    for (std::size_t i = classes_.nodes.size(); i-- > 0;) look(i);
  }
}
std::size_t Ways::num_cuts_around(const Axis& of, std::size_t index) const {
  const ir::Node& node = node_of(index);
  std::size_t number = 0;
  for (std::size_t i = 0; i < ir::inputs_of(node).size(); ++i)
    for (const std::size_t value : read_by_.at({index, i})) number += of.cuts[value].size();
  for (const auto& output : node.outputs)
    if (output) number += of.cuts[classes_.of_value[output->index]].size();
  return number;
}
void Ways::take_cuts(std::size_t asked, std::size_t index) {
  const Axis& of = axes_[asked];
  const ir::Node& node = node_of(index);
  const auto inputs = ir::inputs_of(node);
  for (const Way& way : further_in_[index]) {
    const rewrite::PlacedNode placed = further_in(node, way);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      for (const std::size_t value : read_by_.at({index, i}))
        for (const Placement& cut : std::vector(of.cuts[value])) {
          std::vector<Placement> seen(inputs.size(), Replicate{});
          seen[i] = cut;
          for (const Choice& choice : candidates_.choices(node, of.axis, seen, placed))
            if (plain(choice.in[i], graph_.at(inputs[i]).type.shape, asked) == cut)
              add_way(asked, index, way, choice);
        }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (!node.outputs[i]) continue;
      for (const Placement& cut : std::vector(of.cuts[classes_.of_value[node.outputs[i]->index]]))
        for (const Choice& choice : candidates_.choices_making(node, of.axis, std::get<Shard>(cut), placed))
          if (plain(choice.out[i], graph_.at(*node.outputs[i]).type.shape, asked) == cut)
            add_way(asked, index, way, choice);
    }
  }
}

}  // namespace shoal::planner
