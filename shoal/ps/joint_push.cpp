// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/joint_push.h"

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/places.h"

namespace shoal::ps {

static bool is_same(const JointPush::Maker& one, const JointPush::Maker& other) {
  return one.client == other.client && one.sequence == other.sequence;
}

void JointPush::add(const Push& push, const Maker& maker, const std::string& table) {
  SHOAL_CHECK(push.worker < push.workers, InvalidInput, "ps: table ", in_quotes(table), ": a push of worker ",
              push.worker, " of ", push.workers);
  if (is_empty()) {
    round_ = push.round;
    step_ = push.step;
    rate_ = push.rate;
    of_ = push.of;
    parts_.resize(push.workers);
  }
  SHOAL_CHECK(push.round == round_ && push.workers == parts_.size(), InvalidInput, "ps: table ",
              in_quotes(table), ": worker ", push.worker, " of ", push.workers, " pushes round ", push.round,
              ", and others of ", parts_.size(), " wait with round ", round_,
              "; in sync mode all workers make the same steps");
  Part& part = parts_[push.worker];
  SHOAL_CHECK(!part.is_there || is_same(part.maker, maker), InvalidInput, "ps: table ", in_quotes(table),
              ": there are two workers ", push.worker, " of ", push.workers);
  if (part.is_there) return;
  is_wide_ = push.gradients.is_wide();
  const auto gradients = push.gradients.bytes();
  part.is_there = true;
  part.maker = maker;
  part.keys.assign(push.keys.begin(), push.keys.end());
  part.gradients.assign(gradients.begin(), gradients.end());
  part.shows.assign(push.shows.begin(), push.shows.end());
  part.clicks.assign(push.clicks.begin(), push.clicks.end());
  ++num_there_;
}

std::vector<JointPush::Maker> JointPush::makers() const {
  std::vector<Maker> makers;
  for (const Part& part : parts_)
    if (part.is_there) makers.push_back(part.maker);
  return makers;
}

std::vector<std::uint64_t> JointPush::others_of(const Maker& maker) const {
  std::vector<std::uint64_t> others;
  for (const Part& part : parts_) {
    if (!is_same(part.maker, maker)) continue;
    Places own(part.keys.size());
    for (const std::uint64_t key : part.keys) own.of(key);
    for (const std::uint64_t key : sum_.push().keys)
      if (own.find(key) == Places::kNone) others.push_back(key);
  }
  return others;
}

Push JointPush::push_of(const Part& part) const {
  return {
      .keys = part.keys, .gradients = {part.gradients, is_wide_}, .shows = part.shows, .clicks = part.clicks};
}

Push JointPush::sum(std::size_t width) {
  Push sum;
  if (parts_.size() == 1) {
    sum = push_of(parts_.front());
  } else {
    sum_.clear();
    for (const Part& part : parts_) sum_.add(push_of(part), width);
    sum = sum_.push();
  }
  sum.step = step_;
  sum.rate = rate_;
  sum.of = of_;
  return sum;
}

void JointPush::clear() { *this = {}; }

}  // namespace shoal::ps
