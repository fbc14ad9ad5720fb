// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/found_text.h"

#include <algorithm>
#include <cstdio>
#include <map>
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

static std::string text_of(const std::map<std::string, sharding::Placement>& parameters) {
  std::string text;
  for (const auto& [name, placement] : parameters)
    text += concat(
        text.empty() ? "" : ", ", name, ' ',
        std::holds_alternative<sharding::Replicate>(placement) ? "whole" : sharding::to_text(placement));
  return text;
}

// Those that lie otherwise than in `best`.
static std::map<std::string, sharding::Placement> others(
    const std::map<std::string, sharding::Placement>& next,
    const std::map<std::string, sharding::Placement>& best) {
  std::map<std::string, sharding::Placement> others;
  for (const auto& [name, placement] : next)
    if (const auto found = best.find(name); found == best.end() || found->second != placement)
      others.emplace(name, placement);
  return others;
}

static std::string heading(const compile::Whole& whole, const planner::Found& found) {
  const double gap =
      found.seconds > 0 ? 100 * (found.seconds - std::max(found.bound, 0.0)) / found.seconds : 0;
  char text[128];
  std::snprintf(text, sizeof text, "%.3g ms of a step depend on it, %.2f %% above the least possible",
                1e3 * found.seconds, std::max(gap, 0.0));
  const std::string& axis = whole.mesh.axes[found.decided.axis].name;
  std::string heading = concat("placements over ", axis, ": found; ", text, " (", found.variables,
                               " variables, ", found.rows, " rows)\n");
  if (!found.is_in_time)
    heading += concat("  the best of ", found.question.budget,
                      " s, when the search was ended (planner.budget); more may find a better one\n");
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
                   padded(milliseconds(layer.kept), 8), text_of(layer.parameters));
    if (layer.next)
      text += concat("; ", text_of(others(layer.next->parameters, layer.parameters)), ": ",
                     milliseconds(layer.next->more), " more");
    text += '\n';
  }
  return text;
}

}  // namespace shoal::cli
