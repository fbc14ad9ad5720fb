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

static std::optional<Change> change_of(const Placement& from, const Placement& to) {
  const bool whole = std::holds_alternative<Replicate>(from), part = std::holds_alternative<Shard>(from);
  if (std::holds_alternative<Replicate>(to)) return part ? Change::AllGather : Change::AllReduce;
  if (std::holds_alternative<Shard>(to))
    return whole ? Change::Slice : part ? Change::AllToAll : Change::ReduceScatter;
  if (whole) return Change::KeepOnFirst;
  return std::nullopt;  // to Partial: from Replicate alone
}

// An axis can cut a dim, or join its parts, only while no axis further out cuts it: those cut what this one
// left.
static bool is_outermost(const Layout& layout, std::size_t axis, const Placement& placement) {
  const auto* shard = std::get_if<Shard>(&placement);
  if (shard == nullptr) return true;
  for (std::size_t outer = 0; outer < axis; ++outer) {
    const auto* other = std::get_if<Shard>(&layout.placements[outer]);
    if (other != nullptr && other->dim == shard->dim) return false;
  }
  return true;
}

// Of the rank that has most; nothing where the layout does not fit the shape.
static std::optional<std::int64_t> most_elements(const Mesh& mesh, const Layout& layout, const Shape& shape) {
  if (!misfit(mesh, layout, shape).empty()) return std::nullopt;
  std::int64_t most = 0;
  for (const int rank : mesh.corners()) {
    std::int64_t count = 1;
    for (const std::int64_t size : local_shape(mesh, layout, shape, rank)) count *= size;
    most = std::max(most, count);
  }
  return most;
}

static std::int64_t bytes_of(Change change, std::int64_t whole_bytes, std::int64_t part_bytes,
                             std::int64_t ranks) {
  switch (change) {
    case Change::AllReduce: return 2 * whole_bytes * (ranks - 1) / ranks;
    case Change::ReduceScatter:
    case Change::AllGather: return whole_bytes * (ranks - 1) / ranks;
    case Change::AllToAll: return part_bytes * (ranks - 1) / ranks;
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
      : mesh_(mesh), shape_(shape), bytes_per_element_(bytes_per_element), from_(from), to_(to) {}

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
    Layout whole = layout;
    whole.placements[axis] = Replicate{};
    if (!elements(after)) return {};  // a factor that only another axis' cut makes fit
    return Step{*change, static_cast<int>(axis), now, wanted,
                bytes_of(*change, *elements(whole) * bytes_per_element_,
                         *elements(layout) * bytes_per_element_, mesh_.axes[axis].size)};
  }
  std::optional<std::int64_t> elements(const Layout& layout) {
    const std::string key = to_text(layout);
    const auto known = elements_.find(key);
    if (known != elements_.end()) return known->second;
    return elements_[key] = most_elements(mesh_, layout, shape_);
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
  std::map<State, Reached> best_;
  std::map<std::string, std::optional<std::int64_t>> elements_;
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
