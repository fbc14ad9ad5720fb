// SPDX-License-Identifier: Apache-2.0
// The layouts between are the states of a graph whose edges change one axis; Dijkstra's algorithm finds the
// cheapest way. An axis only ever takes the placement that it has, the one it is to have, or Replicate, so
// there are at most 3^axes states, and there is always a way: everything whole, from the outermost axis to
// the innermost, and back.
#include "shoal/sharding/redistribute.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/names.h"

namespace shoal::sharding {

constexpr Names<Change, 6> kChanges = {{{Change::AllReduce, "all_reduce"},
                                        {Change::ReduceScatter, "reduce_scatter"},
                                        {Change::AllGather, "all_gather"},
                                        {Change::AllToAll, "all_to_all"},
                                        {Change::Slice, "slice"},
                                        {Change::KeepOnFirst, "keep_on_first"}}};

std::optional<Collective> collective_of(Change change) {
  switch (change) {
    case Change::AllReduce: return Collective::AllReduce;
    case Change::ReduceScatter: return Collective::ReduceScatter;
    case Change::AllGather: return Collective::AllGather;
    case Change::AllToAll: return Collective::AllToAll;
    case Change::Slice:
    case Change::KeepOnFirst: return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Change> change_of(const Placement& from, const Placement& to) {
  if (std::holds_alternative<Partial>(to))
    return std::holds_alternative<Replicate>(from) ? std::optional(Change::KeepOnFirst) : std::nullopt;
  const auto *cut = std::get_if<Shard>(&from), *wanted = std::get_if<Shard>(&to);
  if (cut != nullptr && wanted != nullptr) {
    // One dim cut otherwise is gathered first, which the search finds by itself.
    return cut->dim == wanted->dim ? std::nullopt : std::optional(Change::AllToAll);
  }
  if (cut != nullptr) return Change::AllGather;
  if (std::holds_alternative<Replicate>(from)) return Change::Slice;
  return wanted != nullptr ? Change::ReduceScatter : Change::AllReduce;
}

bool is_outermost(const Layout& layout, std::size_t axis, const Placement& placement) {
  const auto* shard = std::get_if<Shard>(&placement);
  if (shard == nullptr) return true;
  for (std::size_t outer = 0; outer < axis; ++outer) {
    const auto* other = std::get_if<Shard>(&layout.placements[outer]);
    if (other != nullptr && other->dim == shard->dim) return false;
  }
  return true;
}

// On each of these ranks; nothing where the layout does not fit the shape.
static std::optional<std::vector<Shape>> local_shapes(const Mesh& mesh, const Layout& layout,
                                                      const Shape& shape, const std::vector<int>& ranks) {
  if (!misfit(mesh, layout, shape).empty()) return std::nullopt;
  std::vector<Shape> shapes;
  for (const int rank : ranks) shapes.push_back(local_shape(mesh, layout, shape, rank));
  return shapes;
}

static std::int64_t product(const Shape& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  return elements;
}

// Elements that a rank sends, of its shapes before and after.
static std::int64_t elements_sent(Change change, const Shape& before, const Shape& after, int ranks) {
  switch (change) {
    case Change::AllReduce: return sent(Collective::AllReduce, product(before), std::int64_t{0}, ranks);
    case Change::AllGather: return sent(Collective::AllGather, product(before), std::int64_t{0}, ranks);
    case Change::ReduceScatter:  // to each its part, and none to itself
      return sent(Collective::AllToAll, product(before), product(after), ranks);
    case Change::AllToAll: {
      Shape own = before;
      for (std::size_t dim = 0; dim < own.size(); ++dim) own[dim] = std::min(own[dim], after[dim]);
      return sent(Collective::AllToAll, product(before), product(own), ranks);
    }
    case Change::Slice:
    case Change::KeepOnFirst: return 0;
  }
  return 0;
}

namespace {

struct Cost {
  std::int64_t bytes = 0;
  int steps = 0;
  friend auto operator<=>(const Cost&, const Cost&) = default;
};

// A state: for each axis the index of its placement among the choices.
using State = std::vector<int>;
enum Choice { From, Whole, To, NumChoices };

class Search {
 public:
  Search(const Mesh& mesh, const Shape& shape, std::int64_t bytes_per_element, const Layout& from,
         const Layout& to)
      : mesh_(mesh),
        shape_(shape),
        bytes_per_element_(bytes_per_element),
        from_(from),
        to_(to),
        ranks_(corners(mesh, from)) {
    for (const int rank : corners(mesh, to))
      if (std::ranges::find(ranks_, rank) == ranks_.end()) ranks_.push_back(rank);
  }

  std::vector<Step> run() {
    const State begin(mesh_.axes.size(), From);
    std::priority_queue<std::pair<Cost, State>, std::vector<std::pair<Cost, State>>, std::greater<>> open;
    best_[begin] = {};
    open.push({Cost{}, begin});
    while (!open.empty()) {
      const auto [cost, state] = open.top();
      open.pop();
      if (cost != best_[state].cost) continue;
      const Layout layout = layout_of(state);
      if (layout == to_) return way_to(state);
      for (std::size_t axis = 0; axis < state.size(); ++axis)
        for (int choice = 0; choice < NumChoices; ++choice) {
          const auto step = step_of(layout, axis, placement_of(axis, choice));
          if (!step) continue;
          State next = state;
          next[axis] = choice;
          const Cost total = {cost.bytes + step->bytes, cost.steps + 1};
          const auto known = best_.find(next);
          if (known != best_.end() && known->second.cost <= total) continue;
          best_[next] = {total, state, *step};
          open.push({total, next});
        }
    }
    fail(ErrorKind::InvalidInput, "redistribution: no way from ", to_text(from_), " to ", to_text(to_),
         " on mesh '", to_text(mesh_), "': a Partial only comes from whole values");
  }

 private:
  struct Reached {
    Cost cost;
    State before;
    Step step;
  };

  Placement placement_of(std::size_t axis, int choice) const {
    if (choice == Whole) return Replicate{};
    return (choice == From ? from_ : to_).placements[axis];
  }
  Layout layout_of(const State& state) const {
    Layout layout;
    for (std::size_t axis = 0; axis < state.size(); ++axis)
      layout.placements.push_back(placement_of(axis, state[axis]));
    return layout;
  }
  std::optional<Step> step_of(const Layout& layout, std::size_t axis, const Placement& wanted) {
    const Placement& now = layout.placements[axis];
    if (now == wanted || !is_outermost(layout, axis, now) || !is_outermost(layout, axis, wanted)) return {};
    const auto change = change_of(now, wanted);
    if (!change) return {};
    Layout after = layout;
    after.placements[axis] = wanted;
    const auto *from = shapes(layout), *to = shapes(after);
    if (to == nullptr) return {};  // a factor that only another axis' cut makes fit
    std::int64_t most = 0;
    for (std::size_t corner = 0; corner < to->size(); ++corner)
      most = std::max(most, elements_sent(*change, (*from)[corner], (*to)[corner], mesh_.axes[axis].size));
    return Step{*change, static_cast<int>(axis), now, wanted, most * bytes_per_element_};
  }
  const std::vector<Shape>* shapes(const Layout& layout) {
    const auto [known, is_new] = shapes_.try_emplace(to_text(layout));
    if (is_new) known->second = local_shapes(mesh_, layout, shape_, ranks_);
    return known->second ? &*known->second : nullptr;
  }
  std::vector<Step> way_to(const State& state) const {
    std::vector<Step> steps;
    for (const Reached* reached = &best_.at(state); !reached->before.empty();
         reached = &best_.at(reached->before))
      steps.push_back(reached->step);
    std::ranges::reverse(steps);
    return steps;
  }

  const Mesh& mesh_;
  const Shape& shape_;
  const std::int64_t bytes_per_element_;
  const Layout &from_, &to_;
  std::vector<int> ranks_;  // among them is the one that sends most
  std::map<State, Reached> best_;
  std::map<std::string, std::optional<std::vector<Shape>>> shapes_;  // by layout
};

}  // namespace

std::vector<Step> redistribution(const Mesh& mesh, const Shape& shape, std::int64_t bytes_per_element,
                                 const Layout& from, const Layout& to) {
  for (const Layout* layout : {&from, &to})
    if (const std::string why = misfit(mesh, *layout, shape); !why.empty())
      fail(ErrorKind::InvalidInput, "redistribution: layout ", to_text(*layout), ": ", why);
  if (from == to) return {};
  return Search(mesh, shape, bytes_per_element, from, to).run();
}

std::string to_text(const Mesh& mesh, const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps)
    text += concat(name_in(kChanges, step.change), " ", mesh.axes[static_cast<std::size_t>(step.axis)].name,
                   " ", to_text(step.from), " -> ", to_text(step.to), " ", step.bytes, " bytes\n");
  return text;
}

}  // namespace shoal::sharding
