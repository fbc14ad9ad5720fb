// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/candidates.h"

#include <algorithm>
#include <utility>

#include "shoal/sharding/ops.h"

namespace shoal::rewrite {

using ir::ValueId;
using sharding::Layout;
using sharding::Placement;
using sharding::Replicate;
using sharding::Shape;
using sharding::Shard;
using sharding::Strategy;

bool is_reshape(std::string_view op) {
  const auto* rule = sharding::find_rule(op);
  return rule != nullptr && rule->is_reshape;
}

bool Choice::splits() const { return std::ranges::any_of(in, is_cut) || std::ranges::any_of(out, is_cut); }

static void add_choice(const Strategy& strategy, std::int64_t outer, std::int64_t unit,
                       std::vector<Choice>& found) {
  if (strategy.in_parts && outer != 1) return;
  Choice choice = {.in = strategy.in,
                   .out = strategy.out,
                   .in_parts = strategy.in_parts,
                   .may_be_empty = strategy.may_be_empty};
  for (auto* list : {&choice.in, &choice.out})
    for (Placement& placement : *list)
      if (auto* shard = std::get_if<Shard>(&placement)) {
        shard->outer *= outer;
        shard->unit *= unit;
      }
  found.push_back(std::move(choice));
}

std::vector<Choice> Candidates::choices(const ir::Node& node, std::size_t axis,
                                        const std::vector<Placement>& seen, const PlacedNode& placed) const {
  std::vector<std::pair<std::int64_t, std::int64_t>> grains = {{1, 1}};
  for (const Placement& placement : seen)
    if (const auto* shard = std::get_if<Shard>(&placement))
      if (const std::pair grain(shard->outer, shard->unit); std::ranges::find(grains, grain) == grains.end())
        grains.push_back(grain);
  std::vector<Choice> found;
  // What the rule says of a view's dims is of whole ones.
  const bool is_left = is_reshape(node.op) && is_cut_further_in(placed, axis);
  for (const Strategy& strategy : strategies_of(node))
    if (!is_left || (!is_cut(strategy.in.front()) && !is_cut(strategy.out.front())))
      for (const auto& [outer, unit] : grains) add_choice(strategy, outer, unit, found);
  add_through_view(node, axis, seen, placed, found);
  add_blocks(node, seen, found);
  return found;
}

const std::vector<Strategy>& Candidates::strategies_of(const ir::Node& node) const {
  const auto [known, is_new] = strategies_.try_emplace(&node);
  if (is_new) known->second = sharding::strategies(graph_, node);
  return known->second;
}

std::vector<Choice> Candidates::choices_making(const ir::Node& node, std::size_t axis, const Shard& wanted,
                                               const PlacedNode& placed) const {
  std::vector<Choice> found;
  if (is_reshape(node.op)) {
    const Shape to = local_shape(mesh_, further_in(placed.out[0], axis), shape_of(*node.outputs.front()), 0);
    for (const Shard& same : {wanted, coarsest(wanted, to, axis)})
      if (const auto before = seen_through(node, axis, same, placed, true)) {
        found.push_back({.in = {*before}, .out = {same}});
        return found;
      }
    return found;
  }
  for (const Strategy& strategy : strategies_of(node)) add_choice(strategy, wanted.outer, wanted.unit, found);
  add_blocks(node, {wanted}, found, true);
  return found;
}

// A view of one input and one output takes cuts that no list of strategies can name.
void Candidates::add_through_view(const ir::Node& node, std::size_t axis, const std::vector<Placement>& seen,
                                  const PlacedNode& placed, std::vector<Choice>& found) const {
  if (!is_reshape(node.op)) return;
  const auto* shard = std::get_if<Shard>(&seen.front());
  if (shard == nullptr) return;
  const Shape from =
      local_shape(mesh_, further_in(placed.in[0], axis), shape_of(ir::inputs_of(node).front()), 0);
  for (const Shard& same : {*shard, coarsest(*shard, from, axis)})
    if (const auto there = seen_through(node, axis, same, placed)) {
      found.push_back({.in = {same}, .out = {*there}});
      return;
    }
}

std::optional<Shard> Candidates::seen_through(const ir::Node& node, std::size_t axis, const Shard& shard,
                                              const PlacedNode& placed, bool backwards) const {
  const Layout in = further_in(placed.in[0], axis), out = further_in(placed.out[0], axis);
  const Shape& whole_in = shape_of(ir::inputs_of(node).front());
  const Shape& whole_out = shape_of(*node.outputs.front());
  std::optional<Shard> found;
  for (const int rank : sharding::corners(mesh_, in)) {
    const Shape from = local_shape(mesh_, in, whole_in, rank), to = local_shape(mesh_, out, whole_out, rank);
    const auto seen =
        backwards ? sharding::through_view(to, from, shard) : sharding::through_view(from, to, shard);
    if (!seen || (found && *found != *seen)) return std::nullopt;
    found = seen;
    if (in == replicated()) break;  // all ranks alike
  }
  return found;
}

Layout Candidates::further_in(const Layout& layout, std::size_t axis) const {
  Layout inner = replicated();
  for (std::size_t i = axis + 1; i < inner.placements.size(); ++i)
    if (is_cut(layout.placements[i])) inner.placements[i] = layout.placements[i];
  return inner;
}
bool Candidates::is_cut_further_out(const PlacedNode& placed, std::size_t axis) {
  for (const auto* layouts : {&placed.in, &placed.out})
    for (const Layout& layout : *layouts)
      if (std::any_of(layout.placements.begin(),
                      layout.placements.begin() + static_cast<std::ptrdiff_t>(axis), is_cut))
        return true;
  return false;
}
bool Candidates::is_cut_further_in(const PlacedNode& placed, std::size_t axis) const {
  return further_in(placed.in[0], axis) != replicated() || further_in(placed.out[0], axis) != replicated();
}

// Parts of equal size are cut alike by any unit up to the whole part.
Shard Candidates::coarsest(Shard shard, const Shape& shape, std::size_t axis) const {
  const std::int64_t block = shape[static_cast<std::size_t>(shard.dim)] / shard.outer;
  const std::int64_t count = mesh_.axes[axis].size;
  if (block % (count * shard.unit) == 0 && block > 0) shard.unit = block / count;
  return shard;
}

// Parts of equal size, one after the other in a dim, are blocks of that dim: [q k v] cut in each of its
// three blocks are q, k and v cut.
// `seen`: of what is read, or, backwards, of what is made.
void Candidates::add_blocks(const ir::Node& node, const std::vector<Placement>& seen,
                            std::vector<Choice>& found, bool backwards) const {
  const bool splits = node.op == "aten::split.Tensor" || node.op == "aten::split_with_sizes";
  if (!splits && node.op != "aten::cat") return;
  const auto inputs = ir::inputs_of(node);
  ir::ValueList parts = splits ? node.outputs : ir::ValueList(inputs.begin(), inputs.end());
  const Shape& shape = shape_of(*parts.front());
  auto dim = std::get<std::int64_t>(*ir::find(node, "dim"));
  if (dim < 0) dim += static_cast<std::int64_t>(shape.size());
  for (const auto& part : parts)
    if (!part || shape_of(*part) != shape) return;
  const auto count = static_cast<std::int64_t>(parts.size());
  for (const Placement& placement : seen) {
    const auto* shard = std::get_if<Shard>(&placement);
    const bool is_part = splits == backwards;
    if (shard == nullptr || shard->dim != dim || (!is_part && shard->outer % count != 0)) continue;
    Shard part = *shard, all = *shard;
    (is_part ? all.outer : part.outer) = is_part ? shard->outer * count : shard->outer / count;
    if (splits)
      found.push_back({.in = {all}, .out = std::vector<Placement>(parts.size(), part)});
    else
      found.push_back({.in = std::vector<Placement>(parts.size(), part), .out = {all}});
  }
}

void set(std::size_t axis, const Choice& choice, PlacedNode& placed) {
  for (std::size_t i = 0; i < placed.in.size(); ++i) placed.in[i].placements[axis] = choice.in[i];
  for (std::size_t i = 0; i < placed.out.size(); ++i) placed.out[i].placements[axis] = choice.out[i];
  placed.in_parts |= choice.in_parts;
}

bool Candidates::fits(const Choice& choice, const ir::Node& node, std::size_t axis, PlacedNode placed) const {
  set(axis, choice, placed);
  const auto inputs = ir::inputs_of(node);
  const auto good = [&](const Layout& layout, ValueId value) {
    if (!misfit(mesh_, layout, shape_of(value)).empty()) return false;
    return choice.may_be_empty || is_nowhere_empty(layout, shape_of(value));
  };
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!good(placed.in[i], inputs[i])) return false;
  for (std::size_t i = 0; i < node.outputs.size(); ++i)
    if (node.outputs[i] && !good(placed.out[i], *node.outputs[i])) return false;
  return true;
}

bool Candidates::is_nowhere_empty(const Layout& layout, const Shape& shape) const {
  for (const int rank : sharding::corners(mesh_, layout))
    if (std::ranges::count(local_shape(mesh_, layout, shape, rank), 0) > 0) return false;
  return true;
}

}  // namespace shoal::rewrite
