// SPDX-License-Identifier: Apache-2.0
// A table's rows as they are stored: visited, put back, and made one number of.
#include <algorithm>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/table.h"

namespace shoal::ps {

void Table::describe(Row& row, std::uint64_t key, std::uint32_t slot) const {
  row.key = key;
  row.usage = definition_.scored ? usage(slot) : Usage{};
  row.parts = 0;
  row.content.clear();
  for (std::size_t part = 0; part < places_.size(); ++part) {
    const Place& place = places_[part];
    const std::byte* const at = part_at(slot, place);
    if (!at) continue;
    row.parts |= 1U << part;
    row.content.emplace_back(at + place.values, place.value_bytes);
    row.content.emplace_back(at + place.state, place.state_bytes);
  }
}

void Table::for_each_row(std::uint32_t shard, const std::function<void(const Row&)>& visit) const {
  Row row;
  indices_[shard].for_each([&](std::uint64_t key, std::uint32_t slot, bool) {
    describe(row, key, slot);
    visit(row);
  });
  if (cold_) for_each_cold(shard, [&](const ColdHead&, const Row& cold) { visit(cold); });
}

void Table::put(const Row& row) {
  preserve({&row.key, 1});
  preserve_cold({&row.key, 1});
  const std::uint32_t shard = shard_of(row.key);
  if (!erase_here(row.key) && cold_ && is_cold(row.key)) --shards_[shard].cold_rows;
  if (cold_) make_room(shard);
  put_here(row);
}

void Table::clear() {
  finish_visits();
  std::vector<std::uint64_t> keys;
  for (std::uint32_t shard = 0; shard < definition_.shards; ++shard) {
    keys.clear();
    for_each_row(shard, [&](const Row& row) { keys.push_back(row.key); });
    erase_all(shard, keys);
    shards_[shard].candidates = Candidates(candidates_a_shard());
    shards_[shard].removed = {};
  }
  day_ = 0;
  saved_ = {};
  shrinks_ = shrinks_saved_ = 0;
  before_.reset();
}

void Table::put(std::span<const std::uint64_t> keys, Numbers values) {
  check({.keys = keys, .gradients = values}, definition_, width_);
  Row row;
  std::vector<std::uint16_t> halves;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    row = {.key = keys[i], .usage = {.day = day_}};
    halves.resize(width_);
    for (std::size_t part = 0; part < places_.size(); ++part) {
      const Place& place = places_[part];
      if (place.late >= 0) continue;
      const Numbers of_part = values.subspan(i * width_ + place.first, place.width);
      const auto stored = std::span(halves).subspan(place.first, place.width);
      if (definition_.dtype == DType::BFloat16) narrow(of_part.of<float>(), stored, keys[i]);
      row.parts |= 1U << part;
      row.content.push_back(definition_.dtype == DType::BFloat16 ? std::as_bytes(stored) : of_part.bytes());
      row.content.emplace_back();
    }
    put(row);
  }
}

void Table::put_here(const Row& row) {
  const std::uint64_t hash = mixed(row.key);
  const std::uint32_t slot = make_row(hash, row.key);
  if (definition_.scored) usage(slot) = row.usage;
  std::size_t next = 0;
  for (std::size_t part = 0; part < places_.size(); ++part) {
    const Place& place = places_[part];
    if (((row.parts >> part) & 1U) == 0) continue;
    std::byte* const at = place.late < 0 ? rows_->at(slot) : make_late(hash, slot, part, row.key);
    const auto values = row.content[next++], state = row.content[next++];
    std::memcpy(at + place.values, values.data(), place.value_bytes);
    if (!state.empty()) std::memcpy(at + place.state, state.data(), place.state_bytes);
  }
}

static std::uint64_t folded(std::uint64_t hash, std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    hash = mixed(hash ^ word);
  }
  return hash;
}

std::uint64_t Table::digest() const {
  std::uint64_t sum = 0;
  for (std::uint32_t shard = 0; shard < definition_.shards; ++shard)
    for_each_row(shard, [&](const Row& row) {
      std::uint64_t hash = mixed(row.key + 1) ^ row.parts;
      hash = folded(hash, std::as_bytes(std::span(&row.usage, 1)));
      for (const auto bytes : row.content) hash = folded(hash, bytes);
      sum += hash;
    });
  return sum;
}

}  // namespace shoal::ps
