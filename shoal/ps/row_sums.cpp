// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/row_sums.h"

namespace shoal::ps {

template <class T>
void RowSums::add_as(const Push& push, std::size_t width) {
  places_.reserve(push.keys.size());
  const auto gradients = push.gradients.of<T>();
  for (std::size_t i = 0; i < push.keys.size(); ++i) {
    const std::size_t at = places_.of(push.keys[i]);
    const float shows = push.shows.empty() ? 1 : push.shows[i];
    const float clicks = push.clicks.empty() ? 0 : push.clicks[i];
    const T* const gradient = gradients.data() + i * width;
    if (at == keys_.size()) {
      keys_.push_back(push.keys[i]);
      const auto* bytes = reinterpret_cast<const std::byte*>(gradient);
      gradients_.insert(gradients_.end(), bytes, bytes + width * sizeof(T));
      shows_.push_back(shows);
      clicks_.push_back(clicks);
      continue;
    }
    T* const sum = reinterpret_cast<T*>(gradients_.data()) + at * width;
    for (std::size_t value = 0; value < width; ++value) sum[value] += gradient[value];
    shows_[at] += shows;
    clicks_[at] += clicks;
  }
}

void RowSums::add(const Push& push, std::size_t width) {
  if (!push.keys.empty()) is_wide_ = push.gradients.is_wide();
  has_usage_ = has_usage_ || !push.shows.empty() || !push.clicks.empty();
  with_number(push.gradients.is_wide(), [&](auto number) { add_as<decltype(number)>(push, width); });
  last_ = push;
}

Push RowSums::push() const {
  Push all = last_;
  all.keys = keys_;
  all.gradients = {gradients_, is_wide_};
  all.shows = all.clicks = {};
  if (has_usage_) {  // else it is one push
    all.shows = shows_;
    all.clicks = clicks_;
  }
  return all;
}

void RowSums::clear() {
  places_.clear();
  keys_.clear();
  gradients_.clear();
  shows_.clear();
  clicks_.clear();
  has_usage_ = false;
  last_ = {};
}

}  // namespace shoal::ps
