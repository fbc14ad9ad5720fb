// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/found_text.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <ranges>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/planner/find.h"
#include "shoal/rewrite/report_words.h"

namespace shoal::cli {

using rewrite::padded;

static std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", 1e3 * seconds);
  return text;
}

using Layouts = std::map<std::string, sharding::Layout>;

// "whole", "S(0)", of several axes "outer=S(0) inner=S(1)": of those that were found.
static std::string text_of(const sharding::Layout& layout, const sharding::Mesh& mesh,
                           const planner::Found& found) {
  std::string text;
  for (const planner::FoundAxis& of : std::views::reverse(found.axes)) {
    const sharding::Placement& placement = layout.placements[of.decided.axis];
    if (std::holds_alternative<sharding::Replicate>(placement)) continue;
    if (found.axes.size() > 1) text += concat(text.empty() ? "" : " ", mesh.axes[of.decided.axis].name, '=');
    text += sharding::to_text(placement);
  }
  return text.empty() ? "whole" : text;
}
static std::string text_of(const Layouts& parameters, const sharding::Mesh& mesh,
                           const planner::Found& found) {
  std::string text;
  for (const auto& [name, layout] : parameters)
    text += concat(text.empty() ? "" : ", ", name, ' ', text_of(layout, mesh, found));
  return text;
}

// Those that lie otherwise than in `best`.
static Layouts others(const Layouts& next, const Layouts& best) {
  Layouts others;
  for (const auto& [name, layout] : next)
    if (const auto found = best.find(name); found == best.end() || found->second != layout)
      others.emplace(name, layout);
  return others;
}

static std::string heading(const compile::Whole& whole, const planner::Found& found) {
  const double gap =
      found.seconds > 0 ? 100 * (found.seconds - std::max(found.bound, 0.0)) / found.seconds : 0;
  char text[128];
  std::snprintf(text, sizeof text, "%.3g ms of a step depend on it, %.2f %% above the least possible",
                1e3 * found.seconds, std::max(gap, 0.0));
  const auto names = [&](const std::vector<planner::FoundAxis>& axes) {
    std::string all;
    for (const planner::FoundAxis& of : std::views::reverse(axes))
      all += concat(all.empty() ? "" : " and ", whole.mesh.axes[of.decided.axis].name);
    return all;
  };
  const std::vector<planner::FoundAxis>& further_in = found.question.further_in;
  std::string bounded;  // what the least is of, unless it is of all axes that are found
  if (!further_in.empty())
    bounded = concat(" of what ", names(further_in), " leaves");
  else if (whole.found.size() > 1)
    bounded = concat(" of ", names(found.axes), " alone");
  std::string over = names(found.axes);
  if (const auto zero = found.question.zero_axis)
    over += concat(over.empty() ? "" : ", and parts over ", whole.mesh.axes[*zero].name);
  std::string heading =
      concat("placements over ", over, ": found", found.axes.size() > 1 ? " together; " : "; ", text, bounded,
             " (", found.variables, " variables, ", found.rows, " rows)\n");
  if (!found.is_in_time)
    heading += concat("  the best of ", found.question.budget,
                      " s, when the search was ended (planner.budget); more may find a better one\n");
  if (found.question.zero_axis)
    heading +=
        concat("  parameters that are kept in parts: ", found.in_parts.size(), " of ",
               std::ranges::count_if(whole.placed.graph.sources,
                                     [&](const ir::Source& source) {
                                       return whole.placed.graph.at(source.value).role == ir::Role::Parameter;
                                     }),
               "\n");
  return heading;
}

std::string found_text(const compile::Whole& whole, const planner::Found& found) {
  std::string text = heading(whole, found);
  text += concat(padded("  ms by layer", 46), padded("work", 8), padded("layouts", 9), padded("memory", 8),
                 "how it lies; the next best\n");
  for (const planner::Layer& layer : planner::explain(whole.placed.graph, whole.mesh, found)) {
    if (layer.work + layer.changed + layer.kept == 0) continue;
    text += concat(padded("  " + (layer.path.empty() ? "(the model)" : layer.path), 46),
                   padded(milliseconds(layer.work), 8), padded(milliseconds(layer.changed), 9),
                   padded(milliseconds(layer.kept), 8), text_of(layer.parameters, whole.mesh, found));
    if (layer.next)
      text += concat("; ", text_of(others(layer.next->parameters, layer.parameters), whole.mesh, found), ": ",
                     milliseconds(layer.next->more), " more");
    text += '\n';
  }
  return text;
}

}  // namespace shoal::cli
