// SPDX-License-Identifier: Apache-2.0
// A key that finds its bucket full goes to the next one, and every bucket that it passed counts it. So a
// search ends at the first bucket that nobody passed (as in Folly's F14). A place that is freed is given to a
// key that passed it, so that only a full bucket is passed: keys that come and go leave nothing behind, and
// some bucket always ends a search.
#include "shoal/ps/index.h"

#include <algorithm>

#include "shoal/base/error.h"

namespace shoal::ps {

static constexpr std::size_t fullest(std::size_t buckets) { return buckets * 4; }  // four of five places

void Index::insert(std::uint64_t key, std::uint32_t slot) {
  if (num_keys_ >= fullest(buckets_.size())) rebuild(buckets_.size() + buckets_.size() * 2 / 5 + 1);
  place(key, slot, true, false);
  ++num_keys_;
}

void Index::place(std::uint64_t key, std::uint32_t slot, bool changed, bool due) {
  std::uint32_t at = scaled(mixed(key), count());
  for (; buckets_[at].used == (1U << kPlaces) - 1; at = after(at))
    if (buckets_[at].passed != kManyPassed) ++buckets_[at].passed;
  Bucket& bucket = buckets_[at];
  const auto free = static_cast<std::size_t>(std::countr_one(bucket.used));
  const auto bit = static_cast<std::uint8_t>(1U << free);
  bucket.keys[free] = key;
  bucket.slots[free] = slot;
  bucket.used |= bit;
  bucket.changed = static_cast<std::uint8_t>(changed ? bucket.changed | bit : bucket.changed & ~bit);
  set_due(at, free, due);
}

std::uint32_t Index::erase(std::uint64_t key) {
  const std::uint64_t hash = mixed(key);
  const Bucket* found = home(hash);
  const int place = sought(found, key);
  if (place < 0) return kAbsent;
  const auto last = static_cast<std::uint32_t>(found - buckets_.data());
  for (std::uint32_t at = scaled(hash, count()); at != last; at = after(at))
    if (buckets_[at].passed != kManyPassed) --buckets_[at].passed;
  const std::uint32_t slot = found->slots[static_cast<std::size_t>(place)];
  --num_keys_;
  if (is_due(last, static_cast<std::size_t>(place))) --num_due_;
  fill_hole(last, static_cast<std::size_t>(place));
  return slot;
}

// With a key that passed the bucket; then what that one leaves, and so on.
void Index::fill_hole(std::uint32_t bucket, std::size_t hole) {
  for (;;) {
    Bucket& to = buckets_[bucket];
    const auto bit = static_cast<std::uint8_t>(1U << hole);
    to.used &= static_cast<std::uint8_t>(~bit);
    set_due(bucket, hole, false);
    if (to.passed == 0) return;
    const auto [from, place] = one_that_passed(bucket);
    if (from == bucket) return;  // none: the bucket lost count of those that passed
    const Bucket& source = buckets_[from];
    to.keys[hole] = source.keys[place];
    to.slots[hole] = source.slots[place];
    to.used |= bit;
    const bool changed = ((source.changed >> place) & 1U) != 0;
    to.changed = static_cast<std::uint8_t>(changed ? to.changed | bit : to.changed & ~bit);
    set_due(bucket, hole, is_due(from, place));
    for (std::uint32_t at = bucket; at != from; at = after(at))
      if (buckets_[at].passed != kManyPassed) --buckets_[at].passed;
    bucket = from;
    hole = place;
  }
}

// Its bucket and place there; the bucket itself where there is none.
std::pair<std::uint32_t, std::size_t> Index::one_that_passed(std::uint32_t bucket) const {
  for (std::uint32_t at = after(bucket), steps = 1; at != bucket; at = after(at), ++steps)
    for (std::size_t place = 0; place < kPlaces; ++place) {
      if (((buckets_[at].used >> place) & 1U) == 0) continue;
      const std::uint32_t home = scaled(mixed(buckets_[at].keys[place]), count());
      const std::uint32_t walked = at >= home ? at - home : at + count() - home;
      if (walked >= steps) return {at, place};
    }
  return {bucket, 0};
}

void Index::fit() {
  const std::size_t wanted = num_keys_ / 3 + 1;  // two thirds full
  if (num_keys_ * 100 < fullest(buckets_.size()) * 70) rebuild(wanted);
}

void Index::rebuild(std::size_t num_buckets) {
  SHOAL_CHECK(num_buckets < kAbsent, Infeasible, "ps: ", num_keys_,
              " keys are more than a shard holds; give the table more shards");
  std::vector<Bucket> old(num_buckets);
  std::swap(old, buckets_);
  std::vector<std::uint8_t> due(due_.empty() ? 0 : num_buckets);
  std::swap(due, due_);
  for (std::size_t at = 0; at < old.size(); ++at) {
    const Bucket& bucket = old[at];
    for (std::size_t i = 0; i < kPlaces; ++i)
      if (((bucket.used >> i) & 1U) != 0)
        place(bucket.keys[i], bucket.slots[i], ((bucket.changed >> i) & 1U) != 0,
              !due.empty() && ((due[at] >> i) & 1U) != 0);
  }
}

void Index::clear_changed() {
  for (Bucket& bucket : buckets_) bucket.changed = 0;
}

void Index::mark_changed() {
  for (Bucket& bucket : buckets_) bucket.changed = bucket.used;
}

void Index::begin_due(bool only_changed) {
  due_.resize(buckets_.size());
  num_due_ = 0;
  for (std::size_t at = 0; at < buckets_.size(); ++at) {
    Bucket& bucket = buckets_[at];
    due_[at] = only_changed ? bucket.changed & bucket.used : bucket.used;
    num_due_ += static_cast<std::size_t>(std::popcount(due_[at]));
    bucket.changed = 0;
  }
}

bool Index::take_due(const Bucket* home, std::uint64_t key) {
  if (num_due_ == 0) return false;
  const int place = sought(home, key);
  if (place < 0) return false;
  const auto bucket = static_cast<std::size_t>(home - buckets_.data());
  if (!is_due(bucket, static_cast<std::size_t>(place))) return false;
  set_due(bucket, static_cast<std::size_t>(place), false);
  --num_due_;
  return true;
}

}  // namespace shoal::ps
