// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/joint_push.h"

#include <algorithm>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/places.h"

namespace shoal::ps {

void JointPush::add(const Push& push, std::uint64_t client, std::uint64_t sequence,
                    const std::string& table) {
  SHOAL_CHECK(push.worker < push.workers, InvalidInput, "ps: table ", quoted(table), ": a push of worker ",
              push.worker, " of ", push.workers);
  if (is_empty()) {
    round_ = push.round;
    step_ = push.step;
    rate_ = push.rate;
    parts_.resize(push.workers);
  }
  SHOAL_CHECK(push.round == round_ && push.workers == parts_.size(), InvalidInput, "ps: table ",
              quoted(table), ": worker ", push.worker, " of ", push.workers, " pushes round ", push.round,
              ", and others of ", parts_.size(), " wait with round ", round_,
              "; in sync mode all workers make the same steps");
  Part& part = parts_[push.worker];
  const bool is_same = part.maker.client == client && part.maker.sequence == sequence;
  SHOAL_CHECK(!part.is_there || is_same, InvalidInput, "ps: table ", quoted(table),
              ": there are two workers ", push.worker, " of ", push.workers);
  if (part.is_there) return;
  is_wide_ = push.gradients.is_wide();
  const auto gradients = push.gradients.bytes();
  part.is_there = true;
  part.maker = {.client = client, .sequence = sequence};
  part.keys.assign(push.keys.begin(), push.keys.end());
  part.gradients.assign(gradients.begin(), gradients.end());
  part.shows.assign(push.shows.begin(), push.shows.end());
  part.clicks.assign(push.clicks.begin(), push.clicks.end());
  has_usage_ = has_usage_ || !push.shows.empty() || !push.clicks.empty();
  ++num_there_;
}

std::vector<JointPush::Maker> JointPush::makers() const {
  std::vector<Maker> makers;
  for (const Part& part : parts_)
    if (part.is_there) makers.push_back(part.maker);
  return makers;
}

bool JointPush::has(std::uint64_t client, std::uint64_t sequence) const {
  return std::ranges::any_of(parts_, [&](const Part& part) {
    return part.is_there && part.maker.client == client && part.maker.sequence == sequence;
  });
}

template <class T>
void JointPush::add_up(std::size_t width) {
  std::size_t most = 0;
  for (const Part& part : parts_) most += part.keys.size();
  Places places(most);
  for (const Part& part : parts_) {
    const auto* gradients = reinterpret_cast<const T*>(part.gradients.data());
    for (std::size_t i = 0; i < part.keys.size(); ++i) {
      const std::size_t at = places.of(part.keys[i]);
      const float shows = part.shows.empty() ? 1 : part.shows[i];
      const float clicks = part.clicks.empty() ? 0 : part.clicks[i];
      const T* const gradient = gradients + i * width;
      if (at == sum_.keys.size()) {
        sum_.keys.push_back(part.keys[i]);
        const auto* bytes = reinterpret_cast<const std::byte*>(gradient);
        sum_.gradients.insert(sum_.gradients.end(), bytes, bytes + width * sizeof(T));
        sum_.shows.push_back(shows);
        sum_.clicks.push_back(clicks);
        continue;
      }
      T* const sum = reinterpret_cast<T*>(sum_.gradients.data()) + at * width;
      for (std::size_t value = 0; value < width; ++value) sum[value] += gradient[value];
      sum_.shows[at] += shows;
      sum_.clicks[at] += clicks;
    }
  }
}

Push JointPush::sum(std::size_t width) {
  Part& sum = parts_.size() == 1 ? parts_.front() : sum_;
  if (parts_.size() > 1) {
    sum_ = {};
    with_number(is_wide_, [&](auto number) { add_up<decltype(number)>(width); });
    if (!has_usage_) {  // it is one push
      sum_.shows.clear();
      sum_.clicks.clear();
    }
  }
  return {.keys = sum.keys,
          .gradients = {sum.gradients, is_wide_},
          .shows = sum.shows,
          .clicks = sum.clicks,
          .step = step_,
          .rate = rate_};
}

void JointPush::clear() { *this = {}; }

}  // namespace shoal::ps
