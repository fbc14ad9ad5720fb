// SPDX-License-Identifier: Apache-2.0
// The cheapest cuts, by dynamic programming over the rows of forward: where a stretch may begin, what the stretches
// before it keep and what work they make again.
#include <algorithm>
#include <utility>

#include "shoal/compile/stretches.h"

namespace shoal::compile {

namespace {
struct Label {
  std::int64_t kept = 0;
  double work = 0;
  std::size_t from = 0, label = 0;  // where the stretch begins, and its label there
};
}  // namespace

// Of both, those that no other one is as good as in both. Each is in order: what keeps more is less work.
static void merge(std::vector<Label>& labels, const std::vector<Label>& others, std::vector<Label>& scratch) {
  scratch.clear();
  const auto add = [&](const Label& label) {
    if (scratch.empty() || label.work < scratch.back().work) scratch.push_back(label);
  };
  auto next = others.begin();
  for (const Label& label : labels) {
    for (; next != others.end() && std::pair(next->kept, next->work) < std::pair(label.kept, label.work);
         ++next)
      add(*next);
    add(label);
  }
  std::for_each(next, others.end(), add);
  labels.swap(scratch);
}

// Of very many, the one with the least work in each of equal ranges.
static void thin_out(std::vector<Label>& labels, std::int64_t bytes) {
  constexpr std::size_t kMost = 256;
  if (labels.size() <= kMost) return;
  std::vector<Label> few = {labels.front()};
  const auto range_of = [&](const Label& label) { return label.kept / (bytes / std::int64_t{kMost} + 1); };
  for (std::size_t i = 1; i < labels.size(); ++i)
    if (i + 1 == labels.size() || range_of(labels[i]) != range_of(labels[i + 1])) few.push_back(labels[i]);
  labels = std::move(few);
}

std::optional<Stretches::Cuts> Stretches::cheapest(std::int64_t bytes) {
  std::vector<std::vector<Label>> labels(rows_.size() + 1);
  labels[0].emplace_back();
  std::vector<Label> longer, scratch;
  for (std::size_t begin = 0; begin < rows_.size(); ++begin) {
    thin_out(labels[begin], bytes);
    if (labels[begin].empty()) continue;
    for (std::size_t end = begin + 1; end <= std::min(rows_.size(), begin + longest_); ++end) {
      const Option& option = cached(begin, end);
      if (!option.is_choice) continue;
      longer.clear();
      for (std::size_t i = 0; i < labels[begin].size(); ++i) {
        const Label& label = labels[begin][i];
        if (label.kept + option.need > bytes) break;  // the others keep more
        longer.push_back({label.kept + option.kept, label.work + option.work, begin, i});
      }
      if (!longer.empty()) merge(labels[end], longer, scratch);
    }
  }
  auto& last = labels.back();
  if (last.empty()) return std::nullopt;
  std::size_t at = rows_.size();
  const Label* label = &*std::ranges::min_element(last, {}, &Label::work);
  Cuts cuts;
  while (at > 0) {
    cuts.push_back(at);
    at = label->from;
    label = &labels[at][label->label];
  }
  std::ranges::reverse(cuts);
  return cuts;
}

// As above, of the labels that keep least: where one of the others goes on, so do they.
bool Stretches::can_take(std::int64_t bytes) {
  std::vector<std::optional<std::int64_t>> least(rows_.size() + 1);  // kept, before the row
  least[0] = 0;
  for (std::size_t begin = 0; begin < rows_.size(); ++begin) {
    if (!least[begin]) continue;
    for (std::size_t end = begin + 1; end <= std::min(rows_.size(), begin + longest_); ++end) {
      const Option& option = cached(begin, end);
      if (!option.is_choice || *least[begin] + option.need > bytes) continue;
      const std::int64_t kept = *least[begin] + option.kept;
      least[end] = std::min(least[end].value_or(kept), kept);
    }
  }
  return least.back().has_value();
}

}  // namespace shoal::compile
