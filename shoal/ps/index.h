// SPDX-License-Identifier: Apache-2.0
// The keys of one shard and the slots of their rows: open addressing over buckets of one cache line, five
// keys to a bucket. At most four in five places are taken, and growing by two fifths leaves at least 0.57 of
// them: 16 to 22.4 bytes a key, all included.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "shoal/ps/hash.h"

namespace shoal::ps {

// One thread at a time. A hash is mixed(key).
class Index {
  static constexpr std::size_t kPlaces = 5;
  static constexpr std::uint16_t kManyPassed = 0xffff;  // stays there

 public:
  static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};

  struct alignas(64) Bucket {
    std::array<std::uint64_t, kPlaces> keys = {};
    std::array<std::uint32_t, kPlaces> slots = {};
    std::uint8_t used = 0;     // bits
    std::uint8_t changed = 0;  // since clear_changed() or begin_due(); bits
    // Keys that belong here or before and lie behind, because this one was full: a search that sees 0 ends.
    std::uint16_t passed = 0;
  };
  static_assert(sizeof(Bucket) == 64);

  Index() : buckets_(1) {}

  // Where a search begins: what to prefetch. Until the index changes.
  const Bucket* home(std::uint64_t hash) const { return &buckets_[scaled(hash, count())]; }

  std::uint32_t find(const Bucket* home, std::uint64_t key) const {
    const int place = sought(home, key);
    return place < 0 ? kAbsent : home->slots[static_cast<std::size_t>(place)];
  }
  // The same, and the row counts as changed from here on.
  std::uint32_t find_to_change(const Bucket* home, std::uint64_t key) {
    const int place = sought(home, key);
    if (place < 0) return kAbsent;
    buckets_[static_cast<std::size_t>(home - buckets_.data())].changed |=
        static_cast<std::uint8_t>(1U << place);
    return home->slots[static_cast<std::size_t>(place)];
  }

  void insert(std::uint64_t key, std::uint32_t slot);  // one that is not there; counts as changed
  std::uint32_t erase(std::uint64_t key);              // its slot; kAbsent where it was not there
  void fit();                                          // after many were erased: gives memory back
  void clear_changed();
  void mark_changed();  // all of them
  // From here on rows count as unchanged. Those that there are, or of them those that had changed, are due: each
  // is to be taken once.
  void begin_due(bool only_changed);
  // Whether the key is due, which it is no more then.
  bool take_due(const Bucket* home, std::uint64_t key);
  // Likewise all of a bucket. visit(key, slot)
  template <class Visit>
  void take_due_in(std::size_t bucket, const Visit& visit) {
    if (due_.empty()) return;
    const Bucket& in = buckets_[bucket];
    for (unsigned due = std::exchange(due_[bucket], std::uint8_t{0}); due != 0; due &= due - 1) {
      const auto place = static_cast<std::size_t>(std::countr_zero(due));
      --num_due_;
      visit(in.keys[place], in.slots[place]);
    }
  }
  std::size_t num_due() const { return num_due_; }
  void end_due() {  // nothing is due
    due_ = {};
    num_due_ = 0;
  }

  std::size_t num_keys() const { return num_keys_; }
  std::size_t bytes() const { return buckets_.size() * sizeof(Bucket); }

  std::size_t num_buckets() const { return buckets_.size(); }
  // The same of one bucket.
  template <class Visit>
  void for_each_in(std::size_t bucket, const Visit& visit) const {
    const Bucket& in = buckets_[bucket];
    for (unsigned used = in.used; used != 0; used &= used - 1) {
      const auto place = static_cast<std::size_t>(std::countr_zero(used));
      visit(in.keys[place], in.slots[place], ((in.changed >> place) & 1U) != 0);
    }
  }
  // visit(key, slot, whether it changed), in an order that depends on the history.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) for_each_in(bucket, visit);
  }

 private:
  std::uint32_t count() const { return static_cast<std::uint32_t>(buckets_.size()); }
  std::uint32_t after(std::uint32_t at) const { return at + 1 == count() ? 0 : at + 1; }

  // The key's place in a bucket, which is then that one; -1 where it is in none.
  int sought(const Bucket*& bucket, std::uint64_t key) const {
    for (;; bucket = bucket == &buckets_.back() ? buckets_.data() : bucket + 1) {
      const unsigned equal = places_of(bucket->keys, key, std::make_index_sequence<kPlaces>()) & bucket->used;
      if (equal != 0) return std::countr_zero(equal);
      if (bucket->passed == 0) return -1;
    }
  }
  // Without a branch a key.
  template <std::size_t... Place>
  static unsigned places_of(const std::array<std::uint64_t, kPlaces>& keys, std::uint64_t key,
                            std::index_sequence<Place...>) {
    return ((static_cast<unsigned>(keys[Place] == key) << Place) | ...);
  }

  void place(std::uint64_t key, std::uint32_t slot, bool changed, bool due);
  bool is_due(std::size_t bucket, std::size_t place) const {
    return !due_.empty() && ((due_[bucket] >> place) & 1U) != 0;
  }
  void set_due(std::size_t bucket, std::size_t place, bool due) {
    if (due_.empty()) return;
    const auto bit = static_cast<std::uint8_t>(1U << place);
    due_[bucket] = static_cast<std::uint8_t>(due ? due_[bucket] | bit : due_[bucket] & ~bit);
  }
  void fill_hole(std::uint32_t bucket, std::size_t hole);
  std::pair<std::uint32_t, std::size_t> one_that_passed(std::uint32_t bucket) const;
  void rebuild(std::size_t num_buckets);

  std::vector<Bucket> buckets_;
  std::vector<std::uint8_t> due_;  // bits, by bucket; none where nothing is
  std::size_t num_due_ = 0;
  std::size_t num_keys_ = 0;
};

}  // namespace shoal::ps
