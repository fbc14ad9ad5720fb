// SPDX-License-Identifier: Apache-2.0
// A table that is larger than its memory. A push goes through in blocks of keys:
//
//   find     slots of those in memory, which are held there until the block is done
//   demote   from shards that would be too full, the rows pushed least of late: one write for all shards
//   promote  those of the block that are on disk: one read
//   apply
//
// so that the disk is asked twice a block, and no shard has more rows than its bound at any time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/blocks.h"
#include "shoal/ps/table.h"

namespace shoal::ps {

static constexpr std::uint8_t kHeld = 0x80, kMostTouches = 7;

void Table::bound_memory(const Cold& cold) {
  constexpr std::size_t kIndex = 24,
                        kLeastRows = std::size_t{2} * Arena::kChunk;  // bytes a row; rows of a shard
  // A slot that is free is remembered.
  const std::size_t a_row = static_cast<std::size_t>(bytes_a_row()) + sizeof(std::uint8_t) + kIndex +
                            sizeof(std::uint32_t) * (1 + late_.size());
  const bool counts = definition_.admission.rule == AdmissionRule::Count ||
                      definition_.admission.rule == AdmissionRule::Score;
  const double fixed =
      static_cast<double>(cold_->memory_bytes()) +
      (counts ? static_cast<double>(definition_.admission.candidates * sizeof(std::uint32_t)) : 0);
  const double shards = static_cast<double>(definition_.shards) / cold.shares;
  const double left = static_cast<double>(cold.memory_bytes) - fixed;
  rows_a_shard_ = left > 0 ? static_cast<std::size_t>(left / shards / static_cast<double>(a_row)) : 0;
  rows_a_shard_ -= rows_a_shard_ % Arena::kChunk;
  SHOAL_CHECK(rows_a_shard_ >= kLeastRows, InvalidInput, "ps: table ", in_quotes(definition_.name), ": ",
              human_bytes(cold.memory_bytes), " of memory are less than the ",
              human_bytes(static_cast<std::int64_t>(
                  std::ceil(fixed + shards * static_cast<double>(a_row * kLeastRows)))),
              " that ", kLeastRows,
              " rows for each of its shards and the disk's cache take; give it more, or fewer "
              "shards");
}

void Table::touch(std::uint32_t slot) const {
  std::uint8_t& touches = touched(slot);
  touches = static_cast<std::uint8_t>(std::min<int>((touches & ~kHeld) + 1, kMostTouches));
}

// So many keys that no shard has to hold more than half of its rows for them.
std::size_t Table::end_of_block(std::span<const std::uint64_t> keys, std::size_t begin) const {
  constexpr std::size_t kBlock = 4096;
  const std::size_t end = std::min(keys.size(), begin + kBlock);
  if (end - begin <= rows_a_shard_ / 2) return end;
  std::vector<std::uint32_t> of_shard(definition_.shards);
  for (std::size_t i = begin; i < end; ++i)
    if (++of_shard[shard_of(keys[i])] > rows_a_shard_ / 2) return i;
  return end;
}

void Table::push_cold(const Push& push) {
  SHOAL_CHECK(failure_.empty(), Infeasible, failure_);
  std::vector<float> scratch(definition_.dtype == DType::BFloat16 ? width_ : 0);
  std::vector<std::uint32_t> slots;
  std::vector<std::uint64_t> missing;
  for (std::size_t begin = 0, end = 0; begin < push.keys.size(); begin = end) {
    end = end_of_block(push.keys, begin);
    const auto keys = push.keys.subspan(begin, end - begin);
    slots.resize(keys.size());
    missing.clear();
    in_blocks(
        keys, [&](std::uint64_t hash) { return indices_[shard_at(hash)].home(hash); },
        [&](const Index::Bucket* home, std::uint64_t key) {
          const std::uint32_t slot = indices_[shard_of(key)].find_to_change(home, key);
          if (slot != Index::kAbsent) __builtin_prefetch(&touched(slot));
          return slot;
        },
        [&](std::size_t i, std::uint32_t slot) {
          slots[i] = slot;
          if (slot == Index::kAbsent)
            missing.push_back(mixed(keys[i]));
          else
            touched(slot) |= kHeld;
        });
    try {
      warm(missing);
    } catch (const std::exception& error) {
      for (const std::uint32_t slot : slots)
        if (slot != Index::kAbsent) touched(slot) &= static_cast<std::uint8_t>(~kHeld);
      if (begin > 0)
        failure_ =
            concat("ps: table ", in_quotes(definition_.name), " has ", begin, " of the ", push.keys.size(),
                   " keys of a push, and is not to be used: begin again from its last save. ", error.what());
      throw;
    }
    constexpr std::size_t kAhead = 16;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size() && slots[i + kAhead] != Index::kAbsent) {
        prefetch(rows_->at(slots[i + kAhead]), rows_->stride());
        if (definition_.scored) __builtin_prefetch(rows_->at(slots[i + kAhead], kUsage));
      }
      push_one(push, begin + i, mixed(keys[i]), slots[i], scratch);
      if (slots[i] != Index::kAbsent) touch(slots[i]);
    }
  }
}

// Brings what is on disk of these, and makes room for the others.
void Table::warm(std::vector<std::uint64_t> hashes) {
  if (hashes.empty()) return;
  std::ranges::sort(hashes);
  const auto repeated = std::ranges::unique(hashes);
  hashes.erase(repeated.begin(), repeated.end());
  Demotion demotion;
  for (std::size_t begin = 0, end = 0; begin < hashes.size(); begin = end) {
    const auto shard = static_cast<std::uint32_t>(shard_at(hashes[begin]));
    for (end = begin; end < hashes.size() && shard_at(hashes[end]) == shard;) ++end;
    const std::size_t wanted = indices_[shard].num_keys() + end - begin;
    if (wanted > rows_a_shard_) choose(shard, std::max(wanted - rows_a_shard_, rows_a_shard_ / 8), demotion);
  }
  demote(demotion);
  Row row;
  cold_->read(hashes, [&](std::size_t, std::string_view record) {
    const ColdHead head = read_record(record, row);
    const std::uint32_t shard = shard_of(row.key);
    if (is_before(shard) && is_due(head) && image_->visit) image_->visit(row);
    put_here(row);
    --shards_[shard].cold_rows;
  });
}

void Table::choose(std::uint32_t shard, std::size_t count, Demotion& demotion) {
  const bool is_visited = is_before(shard);  // before it goes, so that no record since is due
  if (is_visited) reach(shard);
  Index& index = indices_[shard];
  std::size_t& hand = shards_[shard].hand;
  Row row;
  for (std::size_t chosen = 0; chosen < count; ++hand) {
    if (hand >= index.num_buckets()) hand = 0;
    index.for_each_in(hand, [&](std::uint64_t key, std::uint32_t slot, bool changed) {
      std::uint8_t& touches = touched(slot);
      if ((touches & kHeld) != 0) return;
      if (touches > 0) {
        --touches;
        return;
      }
      touches = kHeld;  // so that it is chosen once
      if (is_visited) visit_due(shard, key, slot);
      describe(row, key, slot);
      demotion.changes.written.emplace_back(mixed(key), record_of(row, changed || before_.has_value()));
      demotion.keys.push_back(key);
      ++chosen;
    });
  }
}

void Table::demote(const Demotion& demotion) {
  if (demotion.keys.empty()) return;
  try {
    cold_->write(demotion.changes);
  } catch (...) {
    for (const std::uint64_t key : demotion.keys) {
      const Index& index = indices_[shard_of(key)];
      touched(index.find(index.home(mixed(key)), key)) = 0;
    }
    throw;
  }
  for (const std::uint64_t key : demotion.keys) {
    erase_here(key);
    ++shards_[shard_of(key)].cold_rows;
  }
}

void Table::make_room(std::uint32_t shard) {
  if (indices_[shard].num_keys() < rows_a_shard_) return;
  Demotion demotion;
  choose(shard, rows_a_shard_ / 8, demotion);
  demote(demotion);
}

void Table::pull_cold(std::span<const std::uint64_t> keys, std::span<const std::size_t> missing,
                      std::byte* rows) const {
  std::vector<std::pair<std::uint64_t, std::size_t>> wanted;
  for (const std::size_t i : missing) wanted.emplace_back(mixed(keys[i]), i);
  std::ranges::sort(wanted);
  std::vector<std::uint64_t> hashes;
  std::vector<std::size_t> begins;  // of each hash, in `wanted`
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (hashes.empty() || hashes.back() != wanted[i].first) {
      hashes.push_back(wanted[i].first);
      begins.push_back(i);
    }
  begins.push_back(wanted.size());
  std::vector<bool> is_there(hashes.size());
  Row row;
  std::vector<std::byte> aligned;
  cold_->read(hashes, [&](std::size_t at, std::string_view record) {
    read_record(record, row);
    is_there[at] = true;
    std::byte* const first = rows + wanted[begins[at]].second * row_bytes();
    std::size_t next = 0;
    for (std::size_t part = 0; part < places_.size(); ++part) {
      const bool is_earned = ((row.parts >> part) & 1U) != 0;
      if (is_earned) aligned.assign(row.content[next].begin(), row.content[next].end());
      copy_values(is_earned ? aligned.data() : nullptr, places_[part],
                  first + places_[part].first * number_bytes_);
      if (is_earned) next += 2;
    }
  });
  for (std::size_t at = 0; at < hashes.size(); ++at) {
    std::byte* const first = rows + wanted[begins[at]].second * row_bytes();
    if (!is_there[at]) copy_initial(keys[wanted[begins[at]].second], first);
    for (std::size_t i = begins[at] + 1; i < begins[at + 1]; ++i)
      std::memcpy(rows + wanted[i].second * row_bytes(), first, row_bytes());
  }
}

std::string Table::record_of(const Row& row, bool changed) const {
  const ColdHead head = {.key = row.key,
                         .usage = row.usage,
                         .parts = row.parts,
                         .shrinks = shrinks_,
                         .changed = changed ? cuts_ + 1 : 0};
  static_assert(sizeof head == 32);
  std::string record(reinterpret_cast<const char*>(&head), sizeof head);
  for (const auto bytes : row.content)
    record.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return record;
}

// The row borrows the record.
Table::ColdHead Table::read_record(std::string_view record, Row& row) const {
  ColdHead head;
  const auto must = [&](bool holds) {
    SHOAL_CHECK(holds, Corrupt, "ps: table ", in_quotes(definition_.name), ": a row on disk has ",
                record.size(), " bytes, which are not those that were written");
  };
  must(record.size() >= sizeof head);
  std::memcpy(&head, record.data(), sizeof head);
  auto rest = std::as_bytes(std::span(record)).subspan(sizeof head);
  row.key = head.key;
  row.usage = head.usage;
  row.parts = head.parts;
  row.content.clear();
  for (std::size_t part = 0; part < places_.size(); ++part) {
    if (((head.parts >> part) & 1U) == 0) continue;
    must(rest.size() >= part_bytes(part));
    row.content.push_back(rest.first(places_[part].value_bytes));
    row.content.push_back(
        rest.subspan(places_[part].value_bytes, part_bytes(part) - places_[part].value_bytes));
    rest = rest.subspan(part_bytes(part));
  }
  must(rest.empty());
  if (definition_.scored)
    for (std::uint32_t shrink = head.shrinks; shrink < shrinks_; ++shrink) {
      row.usage.shows *= definition_.life.decay;
      row.usage.clicks *= definition_.life.decay;
    }
  return head;
}

bool Table::is_cold(std::uint64_t key, Usage* usage) const {
  bool found = false;
  const std::uint64_t hash = mixed(key);
  cold_->read(std::span(&hash, 1), [&](std::size_t, std::string_view record) {
    Row row;
    read_record(record, row);
    if (usage) *usage = row.usage;
    found = true;
  });
  return found;
}

void Table::for_each_cold(std::uint32_t shard,
                          const std::function<void(const ColdHead&, const Row&)>& visit) const {
  SHOAL_CHECK(failure_.empty(), Infeasible, failure_);
  if (shards_[shard].cold_rows == 0) return;
  const Index& index = indices_[shard];
  const int shift = 32 + shard_shift_;
  const std::uint64_t first = shift < 64 ? std::uint64_t{shard} << shift : 0;
  const std::uint64_t last = shift < 64 ? first | ((std::uint64_t{1} << shift) - 1) : ~std::uint64_t{0};
  Row row;
  cold_->read_range(first, last, [&](std::size_t, std::string_view record) {
    const ColdHead head = read_record(record, row);
    if (index.find(index.home(mixed(head.key)), head.key) == Index::kAbsent) visit(head, row);
  });
}

}  // namespace shoal::ps
