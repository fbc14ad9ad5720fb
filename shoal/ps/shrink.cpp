// SPDX-License-Identifier: Apache-2.0
// What expires. A table above its bound loses the rows that rank lowest; the rank of the last one to go is
// found by four counts of 16 bits each, so that no list of 20 million scores is made.
//
//   rank:  score as 32 bits in its order | hash of the key, 32 bits
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ps/table.h"

namespace shoal::ps {

// Floats in the order of unsigned numbers.
static std::uint32_t ordered(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

static std::uint64_t rank_of(float score, std::uint64_t key) {
  return (std::uint64_t{ordered(score)} << 32) | (mixed(key) & 0xffffffffu);
}

namespace {

// How many days a row may be unseen, by its key.
class UnseenDays {
 public:
  explicit UnseenDays(const Life& life) : shift_(63 - life.slot_bits), others_(days(life.max_unseen_days)) {
    if (!life.slot_days.empty()) of_slots_.resize(life.slot_days.back().first + 1, others_);
    for (const auto& [slot, most] : life.slot_days) of_slots_[slot] = days(most);
  }
  std::uint32_t operator()(std::uint64_t key) const {
    const std::uint64_t slot = key >> shift_;
    return slot < of_slots_.size() ? of_slots_[slot] : others_;
  }

 private:
  static std::uint32_t days(std::uint32_t said) { return said > 0 ? said : kForever; }
  static constexpr std::uint32_t kForever = ~std::uint32_t{0};

  std::uint32_t shift_;
  std::uint32_t others_;
  std::vector<std::uint32_t> of_slots_;
};

}  // namespace

std::string to_text(const Shrunk& shrunk) {
  return concat(shrunk.low_score + shrunk.unseen + shrunk.over_bound, " of ", shrunk.rows, " rows went (",
                shrunk.low_score, " of low score, ", shrunk.unseen, " unseen, ", shrunk.over_bound,
                " above the bound)");
}

Shrunk Table::shrink(std::uint32_t shares) {
  const Life& life = definition_.life;
  Shrunk shrunk = {.rows = num_rows()};
  if (!definition_.scored) return shrunk;
  finish_visits();
  decay(1);
  const UnseenDays most_unseen(life);
  std::vector<std::uint64_t> gone;
  for (std::uint32_t shard = 0; shard < definition_.shards; ++shard) {
    gone.clear();
    for_each_usage(shard, [&](std::uint64_t key, const Usage& all) {
      const bool is_low = score(all) < life.min_score;
      const bool is_unseen = !is_low && day_ > all.day && day_ - all.day > most_unseen(key);
      shrunk.low_score += is_low;
      shrunk.unseen += is_unseen;
      if (is_low || is_unseen) gone.push_back(key);
    });
    erase_all(shard, gone);
  }
  std::uint64_t most = life.max_rows > 0 ? life.max_rows : ~std::uint64_t{0};
  if (life.max_bytes > 0) most = std::min(most, life.max_bytes / static_cast<std::uint64_t>(bytes_a_row()));
  most /= shares;
  const std::int64_t rows = num_rows();
  if (static_cast<std::uint64_t>(rows) > most)
    shrunk.over_bound = remove_lowest(rows - static_cast<std::int64_t>(most));
  return shrunk;
}

// Of rows in memory; of those on disk it is done when they are read.
void Table::decay(std::uint32_t times) {
  if (!definition_.scored) return;
  shrinks_ += times;
  const float decay = definition_.life.decay;
  // Ends when no bit changes any more: a file may say that there were four thousand million.
  for (bool has_changed = decay != 1; times > 0 && has_changed; --times) {
    has_changed = false;
    for (const Index& index : indices_)
      index.for_each([&](std::uint64_t, std::uint32_t slot, bool) {
        Usage& all = usage(slot);
        for (float* const each : {&all.shows, &all.clicks}) {
          const float before = std::exchange(*each, *each * decay);
          has_changed |= std::bit_cast<std::uint32_t>(before) != std::bit_cast<std::uint32_t>(*each);
        }
      });
  }
}

// The rank below which, with it, there are `count` rows or more: more only where ranks are equal.
std::uint64_t Table::rank_of_lowest(std::int64_t count) const {
  std::uint64_t found = 0;
  std::vector<std::int64_t> counts(1 << 16);
  for (int shift = 48; shift >= 0; shift -= 16) {
    std::ranges::fill(counts, 0);
    for (std::uint32_t shard = 0; shard < definition_.shards; ++shard)
      for_each_usage(shard, [&](std::uint64_t key, const Usage& all) {
        const std::uint64_t rank = rank_of(score(all), key);
        if (shift == 48 || (rank >> (shift + 16)) == (found >> (shift + 16)))
          ++counts[(rank >> shift) & 0xffff];
      });
    std::uint64_t digit = 0;
    for (; counts[digit] < count; ++digit) count -= counts[digit];
    found |= digit << shift;
  }
  return found;
}

void Table::for_each_usage(std::uint32_t shard,
                           const std::function<void(std::uint64_t, const Usage&)>& visit) const {
  indices_[shard].for_each([&](std::uint64_t key, std::uint32_t slot, bool) { visit(key, usage(slot)); });
  if (cold_) for_each_cold(shard, [&](const ColdHead& head, const Row& row) { visit(head.key, row.usage); });
}

// Of one shard, all of which are there.
void Table::erase_all(std::uint32_t shard, std::span<const std::uint64_t> keys) {
  if (keys.empty()) return;
  finish_visits();
  Shard& from = shards_[shard];
  if (cold_) {
    ColdStore::Changes changes;
    for (const std::uint64_t key : keys) changes.removed.push_back(mixed(key));
    cold_->write(changes);
  }
  for (const std::uint64_t key : keys) {
    if (!erase_here(key)) --from.cold_rows;
    if (saved_.origin != 0) from.removed.push_back(key);
  }
  indices_[shard].fit();
}

std::int64_t Table::remove_lowest(std::int64_t count) {
  const std::uint64_t last = rank_of_lowest(count);
  std::int64_t removed = 0;
  std::vector<std::uint64_t> gone;
  for (std::uint32_t shard = 0; shard < definition_.shards; ++shard) {
    gone.clear();
    for_each_usage(shard, [&](std::uint64_t key, const Usage& all) {
      if (rank_of(score(all), key) <= last) gone.push_back(key);
    });
    erase_all(shard, gone);
    removed += static_cast<std::int64_t>(gone.size());
  }
  return removed;
}

}  // namespace shoal::ps
