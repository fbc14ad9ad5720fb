// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/changes.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "shoal/rewrite/place.h"
#include "shoal/sharding/redistribute.h"

namespace shoal::planner {

using sharding::Layout;
using sharding::Placement;
using sharding::Replicate;

// Of one axis, of what the others leave.
static std::optional<double> seconds_of_step(const Placement& from, const Placement& to, double bytes,
                                             int ranks, const Rates& rates) {
  const auto sent = rewrite::bytes_sent(from, to, bytes, ranks);
  if (!sent) return std::nullopt;
  // A part that is kept, or taken from a message, is copied.
  const double copied = bytes / rates.memory;
  return *sent == 0 ? copied / ranks : *sent / rates.link + rates.latency + copied;
}

std::optional<double> seconds_of_change(const sharding::Mesh& mesh, const Question& question,
                                        const Ways& ways, const Layout& from, const Layout& to,
                                        const sharding::Shape& shape, double bytes) {
  for (const AskedAxis& asked : question.axes)
    if (!rewrite::bytes_sent(from.placements[asked.axis], to.placements[asked.axis], bytes, 1))
      return std::nullopt;
  struct Reached {
    Layout layout;
    double seconds;
  };
  std::vector<Reached> reached = {{from, 0}};  // a layout comes again where a faster way to it is found
  for (std::size_t i = 0; i < reached.size(); ++i)
    for (const AskedAxis& asked : question.axes)
      for (const Placement& next : {Placement(Replicate{}), to.placements[asked.axis]}) {
        auto [layout, seconds] = reached[i];
        Placement now = std::exchange(layout.placements[asked.axis], Replicate{});
        if (now == next || !sharding::is_outermost(layout, asked.axis, now) ||
            !sharding::is_outermost(layout, asked.axis, next))
          continue;
        const auto step = seconds_of_step(now, next, bytes * ways.share_of(layout, shape),
                                          mesh.axes[asked.axis].size, question.rates);
        if (!step) continue;
        layout.placements[asked.axis] = next;
        seconds += *step;
        if (std::ranges::none_of(reached, [&](const Reached& other) {
              return other.layout == layout && other.seconds <= seconds;
            }))
          reached.push_back({layout, seconds});
      }
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [layout, seconds] : reached)
    if (layout == to) least = std::min(least, seconds);
  return least;
}

}  // namespace shoal::planner
