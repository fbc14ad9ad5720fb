// SPDX-License-Identifier: Apache-2.0
#include "shoal/simulate/measures.h"

#include <algorithm>
#include <map>

namespace shoal::simulate {

// Joined where they meet, in order.
static std::vector<Span> joined(std::vector<Span> spans) {
  std::ranges::sort(spans, {}, &Span::begin);
  std::vector<Span> all;
  for (const Span& span : spans) {
    if (all.empty() || span.begin > all.back().end)
      all.push_back(span);
    else
      all.back().end = std::max(all.back().end, span.end);
  }
  return all;
}

static std::int64_t length(const std::vector<Span>& spans) {
  std::int64_t all = 0;
  for (const Span& span : spans) all += span.end - span.begin;
  return all;
}

static std::int64_t common(const std::vector<Span>& a, const std::vector<Span>& b) {
  std::int64_t all = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    all += std::max<std::int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return all;
}

std::vector<Communication> communication(const Tasks& tasks, const std::vector<Span>& spans) {
  struct Of {
    std::vector<Span> computes, moves;
  };
  std::map<int, Of> by_rank;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Stream& stream = tasks.streams[static_cast<std::size_t>(tasks.tasks[i].stream)];
    Of& of = by_rank[stream.rank];
    if (spans[i].end > spans[i].begin)
      (stream.name == "compute" ? of.computes : of.moves).push_back(spans[i]);
  }
  std::vector<Communication> found;
  for (auto& [rank, of] : by_rank) {
    const std::vector<Span> moves = joined(std::move(of.moves));
    const std::int64_t moving = length(moves);
    found.push_back({rank, moving, moving - common(moves, joined(std::move(of.computes)))});
  }
  return found;
}

}  // namespace shoal::simulate
