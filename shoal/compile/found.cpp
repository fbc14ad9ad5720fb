// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/found.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/compile/compile.h"
#include "shoal/compile/pins.h"
#include "shoal/rewrite/pinned.h"

namespace shoal::compile {

using ir::Role;
using sharding::Mesh;
using sharding::Placement;

static bool is_named(const Plan& plan, const std::string& axis) {
  return std::ranges::any_of(plan.lines,
                             [&](const PlanLine& line) { return line.placements.contains(axis); });
}

std::vector<std::size_t> axes_to_find(const Plan& plan, const Mesh& mesh) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    const auto& [name, size] = mesh.axes[i];
    const bool is_asked = std::ranges::find(plan.found_axes, name) != plan.found_axes.end();
    if (size == 1 || is_batch_axis(plan, name) || name == plan.pipeline_axis) continue;
    if (is_asked || !is_named(plan, name)) found.push_back(i);
  }
  return found;
}
std::string text_of_axes(const Plan& plan, const Mesh& mesh) {
  std::string names;
  for (const std::size_t axis : axes_to_find(plan, mesh))
    names += concat(names.empty() ? "'" : " and '", mesh.axes[axis].name, "'");
  return concat("axis ", names, " of '", to_text(mesh), "' has ", ranks_to_split(plan, mesh), " ranks");
}
int ranks_to_split(const Plan& plan, const Mesh& mesh) {
  int ranks = 1;
  for (const std::size_t axis : axes_to_find(plan, mesh)) ranks *= mesh.axes[axis].size;
  return ranks;
}

// One line for those of alike layers that are alike.
static std::vector<PlanLine> lines_of(const std::map<std::string, Placement>& parameters,
                                      const std::string& axis) {
  std::map<std::string, std::vector<std::string>> by_pattern;
  for (const auto& [name, placement] : parameters) by_pattern[rewrite::folded(name)].push_back(name);
  std::vector<PlanLine> lines;
  for (const auto& [pattern, names] : by_pattern) {
    const Placement& first = parameters.at(names.front());
    const bool are_alike = std::ranges::all_of(parameters, [&, &pattern = pattern](const auto& parameter) {
      return !rewrite::matches(pattern, parameter.first) || parameter.second == first;
    });
    for (const std::string& name : are_alike ? std::vector{pattern} : names)
      lines.push_back({.kind = PlanLine::Kind::Parameter,
                       .pattern = name,
                       .placements = {{axis, are_alike ? first : parameters.at(name)}}});
  }
  return lines;
}

// What is known of that axis.
static planner::AskedAxis asked_of(std::size_t axis, const ir::Graph& graph, const Mesh& mesh,
                                   const Settings& settings, const Plan& plan) {
  const std::string& name = mesh.axes[axis].name;
  planner::AskedAxis asked{.axis = axis};
  for (const auto& source : graph.sources) {
    if (graph.at(source.value).role != Role::Parameter) continue;
    const bool is_said = settings.is_settled || std::ranges::any_of(plan.lines, [&](const PlanLine& line) {
                           return line.kind == PlanLine::Kind::Parameter && line.placements.contains(name) &&
                                  rewrite::matches(line.pattern, source.name);
                         });
    if (is_said)
      asked.parameters.emplace(source.name, parameter_layout(plan, mesh, source.name).placements[axis]);
  }
  const rewrite::Pins pins = pins_of(plan, mesh, graph, {});
  for (const auto& [value, placements] :
       pinned_of(graph, mesh, rewrite::Pins{.outputs = pins.outputs}, rewrite::uses_of(graph)).values)
    if (const auto known = placements.find(axis); known != placements.end())
      asked.values.emplace(value, known->second);
  return asked;
}

// What is the same for all axes.
static planner::Question question_of(const ir::Graph& graph, const Mesh& mesh, const Settings& settings,
                                     const Plan& plan) {
  planner::Question question{.axes = {},
                             .cuts_samples = plan.planner.tensor_batch,
                             .most_kept = settings.is_settled ? 0 : plan.planner.kept,
                             .budget = plan.planner.budget,
                             .rates = plan.planner.rates};
  for (const auto& other : mesh.axes)
    if (is_batch_axis(plan, other.name)) question.data_ranks *= other.size;
  for (const auto& source : graph.sources) {
    const auto& value = graph.at(source.value);
    if (value.role == Role::Input && is_cut(plan, source.name, value.type.shape.size()))
      question.batch_dims.emplace(source.name, batch_dim_of(plan, source.name));
    if (value.role != Role::Parameter) continue;
    if (uncut_by(settings.update.parts, source.name, value.type.shape) == Uncut::Blocks)
      question.in_blocks.insert(source.name);
    if (is_split(plan, source.name)) question.split.insert(source.name);
  }
  return question;
}

// The patterns of these names, where all that a pattern names are among them.
static std::vector<std::string> patterns_of(const std::set<std::string>& names, const ir::Graph& graph) {
  std::vector<std::string> patterns;
  for (const std::string& name : names) {
    const std::string folded = rewrite::folded(name);
    const bool are_all = std::ranges::all_of(graph.sources, [&](const ir::Source& source) {
      return graph.at(source.value).role != Role::Parameter || !rewrite::matches(folded, source.name) ||
             names.contains(source.name);
    });
    const std::string& pattern = are_all ? folded : name;
    if (std::ranges::find(patterns, pattern) == patterns.end()) patterns.push_back(pattern);
  }
  return patterns;
}

// Which parameters are kept in parts is found, unless it is said.
static void ask_for_parts(const ir::Graph& graph, const Mesh& mesh, const Plan& plan,
                          planner::Question& question) {
  SHOAL_CHECK(
      plan.zero_stage == -1 || plan.zero_stage == 2, InvalidInput,
      "planner.zero finds which parameters are kept in parts beside what ZeRO stage 2 keeps so, and the "
      "stage is ",
      plan.zero_stage, ". Remedy: leave one of them out");
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (mesh.axes[axis].name == plan.zero_axis && mesh.axes[axis].size > 1) question.zero_axis = axis;
  SHOAL_CHECK(question.zero_axis, InvalidInput, "planner.zero finds what ranks of the axis '", plan.zero_axis,
              "' keep in parts, and its degree is 1. Remedy: a degree above 1");
  question.gathers_again = plan.gathers_again;
  question.gap = 1e-5;  // what a small parameter takes is little of a step
  if (plan.zero_parts.empty()) return;
  question.in_parts.emplace();
  for (const auto& source : graph.sources)
    if (graph.at(source.value).role == Role::Parameter &&
        std::ranges::any_of(plan.zero_parts, [&](const std::string& pattern) {
          return rewrite::matches(pattern, source.name);
        }))
      question.in_parts->insert(source.name);
}

std::vector<planner::Found> find_placements(const ir::Graph& graph, const Mesh& mesh,
                                            const Settings& settings, Plan& plan) {
  planner::Question question = question_of(graph, mesh, settings, plan);
  for (const std::size_t axis : axes_to_find(plan, mesh))
    question.axes.insert(question.axes.begin(), asked_of(axis, graph, mesh, settings, plan));
  const bool finds_parts = plan.planner.zero && !settings.is_settled;
  if (finds_parts) ask_for_parts(graph, mesh, plan, question);
  std::vector<planner::Found> all;
  while (!question.axes.empty() || (finds_parts && all.empty())) {
    question.told.clear();
    if (question.budget > 0 && settings.from_first)
      question.told = settings.from_first([&] { return planner::find(graph, mesh, question).told; });
    const planner::Found& found = all.emplace_back(planner::find(graph, mesh, question));
    for (const planner::FoundAxis& of : found.axes) {
      const std::string& name = mesh.axes[of.decided.axis].name;
      auto open = of.parameters;
      for (const auto& [known, placement] : question.axes.front().parameters) open.erase(known);
      for (PlanLine& line : lines_of(open, name)) plan.lines.push_back(std::move(line));
      if (std::ranges::find(plan.found_axes, name) == plan.found_axes.end()) plan.found_axes.push_back(name);
      question.further_in.push_back(of);
      question.axes.erase(question.axes.begin());
    }
  }
  if (finds_parts) {
    plan.zero_stage = 2;
    plan.zero_parts = patterns_of(all.back().in_parts, graph);
  }
  return all;
}

}  // namespace shoal::compile
