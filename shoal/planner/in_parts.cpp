// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/in_parts.h"

#include <algorithm>
#include <cstdint>

namespace shoal::planner {

std::optional<double> share_in_parts(const sharding::Mesh& mesh, const Question& question,
                                     const std::string& parameter, const sharding::Layout& layout,
                                     const sharding::Shape& shape) {
  if (!question.zero_axis || question.in_blocks.contains(parameter)) return std::nullopt;
  const std::int64_t ranks = mesh.axes[*question.zero_axis].size;
  std::optional<double> least;
  for (const std::int64_t size : sharding::local_shape(mesh, layout, shape, 0)) {
    if (size < 2) continue;
    const std::int64_t most = (size + ranks - 1) / ranks;
    least = std::min(least.value_or(1), static_cast<double>(most) / static_cast<double>(size));
  }
  return least;
}

double seconds_in_parts(const sharding::Mesh& mesh, const Question& question, double bytes) {
  const double ranks = mesh.axes[*question.zero_axis].size;
  const double once = bytes * (ranks - 1) / ranks / question.rates.link + question.rates.latency;
  return question.gathers_again ? once : 0;
}

}  // namespace shoal::planner
