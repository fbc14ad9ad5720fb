// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/ways.h"

#include <algorithm>

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
      ranks_(mesh.axes[question.axis].size),
      candidates_(graph, mesh),
      cuts_(classes.values.size()),
      samples_(classes.values.size()),
      choices_(classes.nodes.size()) {
  find_readers();
  follow_samples();
  find_cuts();
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

rewrite::PlacedNode Ways::further_in(const ir::Node& node) const {
  rewrite::PlacedNode placed = {.in = std::vector(ir::inputs_of(node).size(), sharding::replicated(mesh_)),
                                .out = std::vector(node.outputs.size(), sharding::replicated(mesh_))};
  const auto index = static_cast<std::size_t>(&node - graph_.nodes.data());
  for (const FurtherIn& other : question_.further_in)
    set(other.decided.axis, other.decided.nodes[index], placed);
  return placed;
}

Placement Ways::plain(const Placement& placement, const Shape& shape) const {
  const auto* shard = std::get_if<Shard>(&placement);
  if (shard == nullptr || !shard->weights.empty()) return placement;
  const std::int64_t block = shape[static_cast<std::size_t>(shard->dim)] / shard->outer;
  std::int64_t parts = ranks_;  // also where axes further in have cut that dim
  for (const FurtherIn& other : question_.further_in) parts *= mesh_.axes[other.decided.axis].size;
  Shard plain = *shard;
  if (block % (parts * shard->unit) == 0) plain.unit = 1;
  return plain;
}
Choice Ways::plain(Choice choice, const ir::Node& node) const {
  const auto inputs = ir::inputs_of(node);
  for (std::size_t i = 0; i < choice.in.size(); ++i)
    choice.in[i] = plain(choice.in[i], graph_.at(inputs[i]).type.shape);
  for (std::size_t i = 0; i < choice.out.size(); ++i)
    if (node.outputs[i]) choice.out[i] = plain(choice.out[i], graph_.at(*node.outputs[i]).type.shape);
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
  for (const FurtherIn& other : question_.further_in)
    share *= share_of(other.decided.nodes[index], node, other.decided.axis);
  return share;
}
std::string Ways::name_of(std::size_t value) const {
  const ir::ValueId first = classes_.values[value].first;
  const auto source = std::ranges::find(graph_.sources, first, &ir::Source::value);
  return source != graph_.sources.end() && graph_.at(first).role == Role::Parameter ? source->name : "";
}

// Whether it cuts what holds the samples, and may not.
bool Ways::cuts_samples(const Placement& placement, std::size_t value) const {
  const auto* shard = std::get_if<Shard>(&placement);
  if (shard == nullptr) return false;
  for (const Shard& samples : samples_[value]) {
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
bool Ways::leaves_some_without(const Placement& placement, const Shape& shape) const {
  const auto* shard = std::get_if<Shard>(&placement);
  return shard != nullptr &&
         shape[static_cast<std::size_t>(shard->dim)] / (shard->outer * shard->unit) < ranks_;
}

// Of what axes further in leave.
bool Ways::leaves_some_without(const Choice& choice, const ir::Node& node) const {
  if (question_.further_in.empty()) return false;
  rewrite::PlacedNode placed = further_in(node);
  set(question_.axis, choice, placed);
  const auto is_somewhere_empty = [&](const sharding::Layout& layout, ir::ValueId value) {
    if (!rewrite::is_cut(layout.placements[question_.axis])) return false;
    const Shape& shape = graph_.at(value).type.shape;
    return misfit(mesh_, layout, shape).empty() && std::ranges::any_of(corners(mesh_, layout), [&](int rank) {
             return std::ranges::count(local_shape(mesh_, layout, shape, rank), 0) > 0;
           });
  };
  const auto inputs = ir::inputs_of(node);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (is_somewhere_empty(placed.in[i], inputs[i])) return true;
  for (std::size_t i = 0; i < node.outputs.size(); ++i)
    if (node.outputs[i] && is_somewhere_empty(placed.out[i], *node.outputs[i])) return true;
  return false;
}

bool Ways::is_good(const Choice& choice, std::size_t index) const {
  const ir::Node& node = node_of(index);
  const auto inputs = ir::inputs_of(node);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (leaves_some_without(choice.in[i], graph_.at(inputs[i]).type.shape)) return false;
    for (const std::size_t value : read_by_.at({index, i}))
      if (cuts_samples(choice.in[i], value)) return false;
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (!node.outputs[i]) continue;
    if (leaves_some_without(choice.out[i], graph_.at(*node.outputs[i]).type.shape)) return false;
    if (cuts_samples(choice.out[i], classes_.of_value[node.outputs[i]->index])) return false;
  }
  return !leaves_some_without(choice, node) &&
         candidates_.fits(choice, node, question_.axis, further_in(node));
}

// Where the samples of the batch are, in each value that has them.
void Ways::follow_samples() {
  for (const auto& source : graph_.sources)
    if (const auto dim = question_.batch_dims.find(source.name);
        dim != question_.batch_dims.end() && graph_.at(source.value).role == Role::Input)
      samples_[classes_.of_value[source.value.index]] = {Shard{.dim = dim->second}};
  bool is_done = false;
  while (!is_done) {
    is_done = true;
    for (std::size_t i = 0; i < classes_.nodes.size(); ++i) is_done &= !follow_samples(i);
  }
}
bool Ways::follow_samples(std::size_t index) {
  const ir::Node& node = node_of(index);
  const auto inputs = ir::inputs_of(node);
  bool is_new = false;
  const auto add = [&](std::size_t output, const Shard& shard) {
    auto& known = samples_[classes_.of_value[node.outputs[output]->index]];
    if (known.size() >= kMostCuts || std::ranges::find(known, shard) != known.end()) return;
    known.push_back(shard);
    is_new = true;
  };
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (const std::size_t value : read_by_.at({index, i}))
      for (const Shard& samples : samples_[value]) {
        std::vector<Placement> seen(inputs.size(), Replicate{});
        seen[i] = samples;
        bool is_followed = false;
        for (const Choice& choice : candidates_.choices(node, question_.axis, seen, further_in(node))) {
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

void Ways::add_cut(std::size_t value, const Placement& placement) {
  auto& known = cuts_[value];
  if (!rewrite::is_cut(placement) || known.size() >= kMostCuts) return;
  if (std::ranges::find(known, placement) == known.end()) known.push_back(placement);
}
void Ways::add_choice(std::size_t index, const Choice& found) {
  const ir::Node& node = node_of(index);
  Choice choice = plain(found, node);
  auto& known = choices_[index];
  if (std::ranges::find(known, choice) != known.end() || !is_good(choice, index)) return;
  for (std::size_t i = 0; i < choice.in.size(); ++i)
    for (const std::size_t value : read_by_.at({index, i})) add_cut(value, choice.in[i]);
  for (std::size_t i = 0; i < choice.out.size(); ++i)
    if (node.outputs[i]) add_cut(classes_.of_value[node.outputs[i]->index], choice.out[i]);
  known.push_back(std::move(choice));
}

void Ways::find_cuts() {
  for (std::size_t i = 0; i < classes_.nodes.size(); ++i) {
    const ir::Node& node = node_of(i);
    const std::size_t num_inputs = ir::inputs_of(node).size();
    choices_[i].push_back({.in = std::vector<Placement>(num_inputs, Replicate{}),
                           .out = std::vector<Placement>(node.outputs.size(), Replicate{})});
    const std::vector<Placement> seen(num_inputs, Replicate{});
    for (const Choice& choice : candidates_.choices(node, question_.axis, seen, further_in(node)))
      add_choice(i, choice);
  }
  for (const auto& [name, placement] : question_.parameters)
    for (const auto& source : graph_.sources)
      if (source.name == name && graph_.at(source.value).role == Role::Parameter)
        add_cut(classes_.of_value[source.value.index], plain(placement, graph_.at(source.value).type.shape));
  // What is known of a node's tensors when it is looked at.
  std::vector<std::size_t> seen(classes_.nodes.size());
  for (bool is_done = false; !is_done;) {
    is_done = true;
    const auto look = [&](std::size_t index) {
      if (const std::size_t known = num_cuts_around(index); known != seen[index]) {
        seen[index] = known;
        take_cuts(index);
        is_done = false;
      }
    };
    for (std::size_t i = 0; i < classes_.nodes.size(); ++i) look(i);
    for (std::size_t i = classes_.nodes.size(); i-- > 0;) look(i);
  }
}
std::size_t Ways::num_cuts_around(std::size_t index) const {
  const ir::Node& node = node_of(index);
  std::size_t number = 0;
  for (std::size_t i = 0; i < ir::inputs_of(node).size(); ++i)
    for (const std::size_t value : read_by_.at({index, i})) number += cuts_[value].size();
  for (const auto& output : node.outputs)
    if (output) number += cuts_[classes_.of_value[output->index]].size();
  return number;
}
void Ways::take_cuts(std::size_t index) {
  const ir::Node& node = node_of(index);
  const auto inputs = ir::inputs_of(node);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (const std::size_t value : read_by_.at({index, i}))
      for (const Placement& cut : std::vector(cuts_[value])) {
        std::vector<Placement> seen(inputs.size(), Replicate{});
        seen[i] = cut;
        for (const Choice& choice : candidates_.choices(node, question_.axis, seen, further_in(node)))
          if (plain(choice.in[i], graph_.at(inputs[i]).type.shape) == cut) add_choice(index, choice);
      }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (!node.outputs[i]) continue;
    for (const Placement& cut : std::vector(cuts_[classes_.of_value[node.outputs[i]->index]]))
      for (const Choice& choice :
           candidates_.choices_making(node, question_.axis, std::get<Shard>(cut), further_in(node)))
        if (plain(choice.out[i], graph_.at(*node.outputs[i]).type.shape) == cut) add_choice(index, choice);
  }
}

}  // namespace shoal::planner
