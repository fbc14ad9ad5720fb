// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/report_words.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <variant>

#include "shoal/base/error.h"

namespace shoal::rewrite {

std::vector<std::string> placements_text(const sharding::Mesh& mesh, const sharding::Layout& layout) {
  std::vector<std::string> texts;
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (!std::holds_alternative<sharding::Replicate>(layout.placements[axis]) && mesh.axes[axis].size > 1)
      texts.push_back(concat(mesh.axes[axis].name, '=', sharding::to_text(layout.placements[axis])));
  return texts;
}

std::string layout_text(const sharding::Mesh& mesh, const sharding::Layout& layout) {
  std::string text;
  for (const std::string& each : placements_text(mesh, layout)) text += concat(text.empty() ? "" : " ", each);
  return text.empty() ? "whole" : text;
}

std::string layouts_text(const sharding::Mesh& mesh, const LayerLine& line) {
  return concat(layout_text(mesh, line.kept),
                line.used == line.kept ? "" : " -> " + layout_text(mesh, line.used));
}

std::string shape_text(const sharding::Shape& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += concat(text.empty() ? "" : ", ", size);
  return concat("[", text, "]");
}

std::string name_of(const LayerLine& line) {
  return concat(line.path.empty() ? "(the model)" : line.path,
                line.count() > 1 ? concat(" x", line.count()) : "");
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
  return text;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size() + 1, width), ' ');
  return text;
}

}  // namespace shoal::rewrite
