// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/compile/found.h"
#include "shoal/compile/plan.h"
#include "shoal/rewrite/place.h"

namespace shoal::compile {

using sharding::Axis;
using sharding::Layout;
using sharding::Mesh;
using sharding::Placement;

const rewrite::TableSpec* table_in(const Plan& plan, std::string_view parameter) {
  const auto found = std::ranges::find_if(plan.tables, [&](const rewrite::TableSpec& table) {
    return rewrite::matches(table.parameters, parameter);
  });
  return found == plan.tables.end() ? nullptr : &*found;
}

bool is_table(const Plan& plan, std::string_view parameter) { return table_in(plan, parameter) != nullptr; }

bool is_split(const Plan& plan, std::string_view parameter) {
  return std::ranges::any_of(plan.splits, [&](const std::string& pattern) {
    for (std::size_t end = parameter.size(); end != std::string_view::npos && end > 0;
         end = parameter.rfind('.', end - 1))
      if (rewrite::matches(pattern, parameter.substr(0, end))) return true;
    return false;
  });
}

// All sizes of so many axes that multiply to that many ranks: "1 x 4, 2 x 2, 4 x 1".
static std::string sizes_of(int ranks, std::size_t axes) {
  if (axes == 1) return concat(ranks);
  std::string all;
  for (int size = 1; size <= ranks; ++size) {
    if (ranks % size != 0) continue;
    std::string inner = sizes_of(ranks / size, axes - 1);
    for (std::size_t at = 0; at < inner.size(); at = std::min(inner.find(", ", at), inner.size())) {
      if (at > 0) at += 2;
      all += concat(all.empty() ? "" : ", ", size, " x ", inner.substr(at, inner.find(", ", at) - at));
    }
  }
  return all;
}

Mesh mesh_of(const std::vector<Axis>& axes, int ranks) {
  Mesh mesh{axes};
  int known = 1;
  Axis* open = nullptr;
  std::string degrees;
  for (Axis& axis : mesh.axes) {
    SHOAL_CHECK(axis.size >= 1 || (axis.size == -1 && open == nullptr), InvalidInput,
                "parallelism: a degree is ", axis.size,
                "; each is at least 1, and one of them may be -1: the ranks that the others leave");
    if (axis.size == -1)
      open = &axis;
    else
      known *= axis.size;
  }
  if (open != nullptr) open->size = std::max(ranks / known, 1);
  for (const Axis& axis : mesh.axes)
    degrees += concat(degrees.empty() ? "" : " x ", axis.name, ' ', axis.size);
  SHOAL_CHECK(mesh.size() == ranks, InvalidInput, "parallelism: degrees ", degrees, " are ", mesh.size(),
              " ranks, and there are ", ranks, "; these would fit: ", sizes_of(ranks, mesh.axes.size()));
  return mesh;
}

Layout parameter_layout(const Plan& plan, const Mesh& mesh, std::string_view parameter) {
  Layout layout = sharding::replicated(mesh);
  std::map<std::string, std::pair<Placement, std::string>> said;
  for (const PlanLine& line : plan.lines) {
    if (line.kind != PlanLine::Kind::Parameter || !rewrite::matches(line.pattern, parameter)) continue;
    for (const auto& [axis, placement] : line.placements) {
      const auto [known, is_new] = said.try_emplace(axis, placement, line.pattern);
      SHOAL_CHECK(is_new || known->second.first == placement, InvalidInput, "plan: parameter ", parameter,
                  " is ", axis, "=", to_text(known->second.first), " by '", known->second.second, "' and ",
                  axis, "=", to_text(placement), " by '", line.pattern, "'; leave one of them out");
      if (const auto index = static_cast<std::size_t>(mesh.axis(axis)); mesh.axes[index].size > 1)
        layout.placements[index] = placement;
    }
  }
  return layout;
}

void check_fits(const Plan& plan, const Mesh& mesh, const std::vector<std::string>& parameters,
                std::string_view name) {
  std::string unknown;
  for (const PlanLine& line : plan.lines) {
    for (const auto& [axis, placement] : line.placements)
      SHOAL_CHECK(std::ranges::find(mesh.axes, axis, &sharding::Axis::name) != mesh.axes.end(), InvalidInput,
                  name, ": '", line.pattern, "' is placed on axis '", axis, "', and the mesh is '",
                  to_text(mesh), "'");
    const auto fits = [&](const std::string& parameter) { return rewrite::matches(line.pattern, parameter); };
    if (line.kind == PlanLine::Kind::Parameter && std::ranges::none_of(parameters, fits))
      unknown += concat(unknown.empty() ? "" : ", ", line.pattern);
  }
  for (const auto& axis : plan.found_axes)
    SHOAL_CHECK(std::ranges::find(mesh.axes, axis, &sharding::Axis::name) != mesh.axes.end(), InvalidInput,
                name, ": placements are to be found over axis '", axis, "', and the mesh is '", to_text(mesh),
                "'");
  for (const std::string& pattern : plan.zero_parts)
    if (std::ranges::none_of(parameters,
                             [&](const std::string& each) { return rewrite::matches(pattern, each); }))
      unknown += concat(unknown.empty() ? "" : ", ", pattern);
  for (const std::string& pattern : plan.splits) {
    Plan alone;
    alone.splits = {pattern};
    if (std::ranges::none_of(parameters, [&](const std::string& each) { return is_split(alone, each); }))
      unknown += concat(unknown.empty() ? "" : ", ", pattern);
  }
  SHOAL_CHECK(
      plan.splits.empty() || mesh.size() == 1 || ranks_to_split(plan, mesh) > 1, InvalidInput, name,
      ": 'split ", plan.splits.empty() ? "" : plan.splits.front(), "', and no axis of '", to_text(mesh),
      "' is there to split over: each cuts the batch or the model's stages, or lines say what lies how. "
      "Remedy: a tensor degree");
  SHOAL_CHECK(
      plan.planner == Planner{} || plan.planner.zero || mesh.size() == 1 || ranks_to_split(plan, mesh) > 1,
      InvalidInput, name, ": planner: nothing is found on '", to_text(mesh),
      "': each axis cuts the batch or the model's stages, or lines say what lies how. Remedy: a "
      "tensor degree, "
      "or nothing of the planner");
  const int stages = num_stages_of(plan, mesh);  // also where the schedule is none of this mesh's
  SHOAL_CHECK(plan.stages.empty() || mesh.size() == 1 || stages > 1, InvalidInput, name,
              ": a stage begins at '", plan.stages.empty() ? "" : plan.stages.front(), "', and no axis of '",
              to_text(mesh), "' is a pipeline ('", plan.pipeline_axis,
              "'). Remedy: a degree of it, or a plan without stages");
  SHOAL_CHECK(unknown.empty(), InvalidInput, name, ": this model has no parameter ", unknown, "; it has ",
              parameters.size(), ", the first is ", parameters.empty() ? "none" : parameters.front());
}

}  // namespace shoal::compile
