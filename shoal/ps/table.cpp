// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/blocks.h"

namespace shoal::ps {

static constexpr std::uint32_t kNoSlot = Index::kAbsent;

template <class T>
static std::span<T> numbers(std::byte* at, std::size_t count) {
  return {reinterpret_cast<T*>(at), count};
}

static std::span<std::uint16_t> halves(std::byte* at, std::size_t count) {
  return {reinterpret_cast<std::uint16_t*>(at), count};
}

Table::Table(Definition definition, Cold cold)
    : definition_(std::move(definition)), cold_(std::move(cold.store)) {
  ps::check(definition_);
  stream_ = stream_of(definition_.seed, definition_.name);
  shard_shift_ = 32 - std::countr_zero(definition_.shards);
  lay_out();
  indices_.resize(definition_.shards);
  shards_.reserve(definition_.shards);
  for (std::uint32_t i = 0; i < definition_.shards; ++i)
    shards_.emplace_back(candidates_a_shard()).late.resize(late_.size());
  if (cold_) bound_memory(cold);
}

void Table::lay_out() {
  constexpr std::size_t kAlign = 16;
  is_wide_ = is_wide(definition_.dtype);
  number_bytes_ = number_bytes(is_wide_);
  const std::size_t value_size = static_cast<std::size_t>(bytes_of(definition_.dtype));
  const auto rounded = [](std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; };
  for (const Part& part : definition_.parts) {
    places_.push_back({.first = width_,
                       .width = part.width,
                       .value_bytes = part.width * value_size,
                       .state_width = state_width(part.optimizer, part.width)});
    places_.back().state_bytes = places_.back().state_width * number_bytes_;
    width_ += part.width;
  }
  std::size_t row = 0;
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (definition_.parts[i].earned_at == 0) {
      places_[i].values = row;
      row += places_[i].value_bytes;
    }
  row = rounded(row, number_bytes_);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (definition_.parts[i].earned_at == 0) {
      place.state = row;
      row += place.state_bytes;
      continue;
    }
    place.late = static_cast<int>(late_.size());
    place.state = rounded(place.value_bytes, number_bytes_);
    late_.push_back(std::make_unique<Arena>(std::vector{rounded(place.state + place.state_bytes, kAlign)}));
  }
  std::vector<std::size_t> columns = {rounded(row, kAlign)};
  if (definition_.scored) columns.push_back(sizeof(Usage));
  has_late_ = !late_.empty();
  if (has_late_) columns.push_back(late_.size() * sizeof(std::uint32_t));
  touched_ = columns.size();
  if (cold_) columns.push_back(sizeof(std::uint8_t));
  rows_ = std::make_unique<Arena>(columns);
  is_plain_ = places_.size() == 1 && definition_.dtype != DType::BFloat16;
}

std::byte* Table::part_at(std::uint32_t slot, const Place& place) const {
  if (place.late < 0) return rows_->at(slot);
  const std::uint32_t late = late_slot(slot, place.late);
  return late == kNoSlot ? nullptr : late_[static_cast<std::size_t>(place.late)]->at(late);
}

void Table::pull(std::span<const std::uint64_t> keys, WritableNumbers rows) const {
  SHOAL_CHECK(rows.size() == keys.size() * width_ && (rows.size() == 0 || rows.is_wide() == is_wide_),
              InvalidInput, "ps: table ", in_quotes(definition_.name), ": a pull of ", keys.size(),
              " keys of width ", width_, " got room for ", rows.size(), " values in ",
              rows.is_wide() ? "f64" : "f32");
  const std::size_t value_bytes = places_[0].value_bytes,
                    near = places_.size() == 1 ? value_bytes : rows_->stride();
  std::byte* const first = rows.bytes().data();
  std::vector<std::size_t> missing;
  in_blocks(
      keys, [&](std::uint64_t hash) { return indices_[shard_at(hash)].home(hash); },
      [&](const Index::Bucket* home, std::uint64_t key) {
        const std::uint32_t slot = indices_[shard_of(key)].find(home, key);
        if (slot != kNoSlot) prefetch(rows_->at(slot), near);
        return slot;
      },
      [&](std::size_t i, std::uint32_t slot) {
        std::byte* const to = first + i * row_bytes();
        if (slot == kNoSlot && cold_)
          missing.push_back(i);
        else if (slot == kNoSlot)
          copy_initial(keys[i], to);
        else if (is_plain_)
          std::memcpy(to, rows_->at(slot), value_bytes);
        else
          copy_row(slot, to);
      });
  if (!missing.empty()) pull_cold(keys, missing, first);
}

// A part's values as they are stored, null where it is not earned, to where they are handed out.
void Table::copy_values(const std::byte* from, const Place& place, std::byte* to) const {
  if (from == nullptr)
    std::memset(to, 0, place.width * number_bytes_);
  else if (definition_.dtype == DType::BFloat16)
    widen({reinterpret_cast<const std::uint16_t*>(from), place.width}, numbers<float>(to, place.width));
  else
    std::memcpy(to, from, place.value_bytes);
}

void Table::copy_row(std::uint32_t slot, std::byte* to) const {
  for (const Place& place : places_) {
    const std::byte* const at = part_at(slot, place);
    copy_values(at == nullptr ? nullptr : at + place.values, place, to + place.first * number_bytes_);
  }
}

void Table::copy_initial(std::uint64_t key, std::byte* to) const {
  std::vector<std::uint16_t> stored;
  for (std::size_t part = 0; part < places_.size(); ++part) {
    const Place& place = places_[part];
    std::byte* const at = to + place.first * number_bytes_;
    if (place.late >= 0) {
      copy_values(nullptr, place, at);
      continue;
    }
    begin_values(part, key, at);
    if (definition_.dtype != DType::BFloat16) continue;
    stored.resize(place.width);
    narrow(numbers<float>(at, place.width), stored, key);
    widen(stored, numbers<float>(at, place.width));
  }
}

// What a part begins with, in the numbers that are handed out.
void Table::begin_values(std::size_t i, std::uint64_t key, std::byte* values) const {
  const Part& part = definition_.parts[i];
  with_number(is_wide_, [&](auto number) {
    const auto all = numbers<decltype(number)>(values, part.width);
    fill(part.initial, stream_, key, static_cast<std::uint32_t>(i), all);
    bound(all, part.lowest, part.highest);
  });
}

void Table::begin_part(std::size_t i, std::byte* row, std::uint64_t key) const {
  const Part& part = definition_.parts[i];
  const Place& place = places_[i];
  if (definition_.dtype == DType::BFloat16) {
    std::vector<float> wide(place.width);
    begin_values(i, key, reinterpret_cast<std::byte*>(wide.data()));
    narrow(wide, halves(row + place.values, place.width), key);
  } else {
    begin_values(i, key, row + place.values);
  }
  with_number(is_wide_, [&](auto number) {
    begin_state(part.optimizer, place.width, numbers<decltype(number)>(row + place.state, place.state_width));
  });
}

void Table::push(const Push& push) {
  check(push, definition_, width_);
  preserve(push.keys);
  if (cold_) return push_cold(push);
  std::vector<float> scratch(definition_.dtype == DType::BFloat16 ? width_ : 0);
  in_blocks(
      push.keys, [&](std::uint64_t hash) { return indices_[shard_at(hash)].home(hash); },
      [&](const Index::Bucket* home, std::uint64_t key) {
        const std::uint32_t slot = indices_[shard_of(key)].find_to_change(home, key);
        if (slot != kNoSlot) {
          prefetch(rows_->at(slot), rows_->stride());
          if (definition_.scored) __builtin_prefetch(rows_->at(slot, kUsage));
        }
        return slot;
      },
      [&](std::size_t i, std::uint32_t slot) { push_one(push, i, mixed(push.keys[i]), slot, scratch); });
}

void Table::push_one(const Push& push, std::size_t at, std::uint64_t hash, std::uint32_t slot,
                     std::span<float> scratch) {
  const std::uint64_t key = push.keys[at];
  const Usage seen = {.shows = push.shows.empty() ? 1 : push.shows[at],
                      .clicks = push.clicks.empty() ? 0 : push.clicks[at],
                      .day = day_};
  Index& index = indices_[shard_at(hash)];
  if (slot == kNoSlot) slot = index.find_to_change(index.home(hash), key);  // made since it was looked for?
  if (slot == kNoSlot) {
    if (!is_admitted(hash, key, seen, push.step)) return;
    slot = make_row(hash, key);
  }
  float reached = 0;
  if (definition_.scored) {
    Usage& all = usage(slot);
    all = {.shows = all.shows + seen.shows, .clicks = all.clicks + seen.clicks, .day = day_};
    if (has_late_) reached = score(all);
  }
  for (std::size_t part = 0; part < places_.size(); ++part) {
    if (std::byte* const row = part_at(slot, places_[part]))
      apply(part, row, push, at, scratch);
    else if (reached >= definition_.parts[part].earned_at)
      make_late(hash, slot, part, key);
  }
}

void Table::apply(std::size_t part, std::byte* row, const Push& push, std::size_t at,
                  std::span<float> scratch) const {
  const Place& place = places_[part];
  if (is_wide_) return apply_in(part, row, push, at, numbers<double>(row + place.values, place.width));
  if (definition_.dtype == DType::Float32)
    return apply_in(part, row, push, at, numbers<float>(row + place.values, place.width));
  const auto values = scratch.first(place.width);
  widen(halves(row + place.values, place.width), values);
  apply_in(part, row, push, at, values);
  narrow(values, halves(row + place.values, place.width), push.keys[at] ^ mixed(push.step));
}

template <class T>
void Table::apply_in(std::size_t i, std::byte* row, const Push& push, std::size_t at,
                     std::span<T> values) const {
  const Part& part = definition_.parts[i];
  const Place& place = places_[i];
  const auto gradient = push.gradients.of<T>().subspan(at * width_ + place.first, place.width);
  if (push.of == PushOf::Differences)
    for (std::size_t value = 0; value < values.size(); ++value) values[value] += gradient[value];
  else
    update(part.optimizer, push.rate, values, numbers<T>(row + place.state, place.state_width), gradient);
  if (std::isfinite(part.lowest) || std::isfinite(part.highest)) bound(values, part.lowest, part.highest);
}

bool Table::is_admitted(std::uint64_t hash, std::uint64_t key, const Usage& seen, std::uint64_t step) {
  constexpr float kSteps = 64;  // of a score
  const Admission& admission = definition_.admission;
  Candidates& candidates = shards_[shard_at(hash)].candidates;
  const auto reaches = [&](float points, float threshold) {
    const auto whole = static_cast<std::uint32_t>(std::lround(std::min(points, float{Candidates::kMost})));
    if (static_cast<float>(candidates.add(hash, whole)) < threshold) return false;
    candidates.forget(hash);
    return true;
  };
  switch (admission.rule) {
    case AdmissionRule::Always: return true;
    case AdmissionRule::Count: return reaches(1, admission.threshold);
    case AdmissionRule::Probability:
      return draw(stream_, key, step) < static_cast<double>(admission.threshold);
    case AdmissionRule::Score:
      return reaches(kSteps * std::max(score(seen), 0.0f), kSteps * admission.threshold);
  }
  return true;
}

std::uint32_t Table::make_row(std::uint64_t hash, std::uint64_t key) {
  const std::uint32_t slot = shards_[shard_at(hash)].slots.take(*rows_);
  if (definition_.scored) usage(slot) = {};
  if (cold_) touched(slot) = 0;
  for (std::size_t part = 0; part < places_.size(); ++part)
    if (places_[part].late < 0)
      begin_part(part, rows_->at(slot), key);
    else
      late_slot(slot, places_[part].late) = kNoSlot;
  indices_[shard_at(hash)].insert(key, slot);
  return slot;
}

std::byte* Table::make_late(std::uint64_t hash, std::uint32_t slot, std::size_t part, std::uint64_t key) {
  const auto late = static_cast<std::size_t>(places_[part].late);
  const std::uint32_t taken = shards_[shard_at(hash)].late[late].take(*late_[late]);
  late_slot(slot, places_[part].late) = taken;
  std::byte* const row = late_[late]->at(taken);
  begin_part(part, row, key);
  return row;
}

bool Table::erase(std::uint64_t key) {
  preserve({&key, 1});
  preserve_cold({&key, 1});
  const bool was_there = erase_quietly(key);
  if (was_there && saved_.origin != 0) shards_[shard_of(key)].removed.push_back(key);
  return was_there;
}

bool Table::erase_quietly(std::uint64_t key) {
  const bool was_here = erase_here(key);
  if (!cold_) return was_here;
  const bool was_cold = !was_here && is_cold(key);
  cold_->write({.removed = {mixed(key)}});  // an old record too
  if (was_cold) --shards_[shard_of(key)].cold_rows;
  return was_here || was_cold;
}

bool Table::erase_here(std::uint64_t key) {
  const std::size_t at = shard_at(mixed(key));
  const std::uint32_t slot = indices_[at].erase(key);
  if (slot == kNoSlot) return false;
  Shard& shard = shards_[at];
  for (std::size_t late = 0; late < late_.size(); ++late)
    if (const std::uint32_t taken = late_slot(slot, static_cast<int>(late)); taken != kNoSlot)
      shard.late[late].give_back(taken);
  shard.slots.give_back(slot);
  return true;
}

bool Table::contains(std::uint64_t key) const {
  const std::uint64_t hash = mixed(key);
  const Index& index = indices_[shard_at(hash)];
  return index.find(index.home(hash), key) != kNoSlot || (cold_ && is_cold(key));
}

Usage Table::usage_of(std::uint64_t key) const {
  const std::uint64_t hash = mixed(key);
  const Index& index = indices_[shard_at(hash)];
  const std::uint32_t slot = index.find(index.home(hash), key);
  if (slot != kNoSlot && definition_.scored) return usage(slot);
  Usage usage;
  if (slot == kNoSlot && cold_) is_cold(key, &usage);
  return usage;
}

float Table::score(const Usage& usage) const {
  const Life& life = definition_.life;
  return life.show_weight * (usage.shows - usage.clicks) + life.click_weight * usage.clicks;
}

std::int64_t Table::num_rows() const {
  std::size_t rows = 0;
  for (const Index& index : indices_) rows += index.num_keys();
  return static_cast<std::int64_t>(rows) + num_cold_rows();
}

std::int64_t Table::num_cold_rows() const {
  std::size_t rows = 0;
  for (const Shard& shard : shards_) rows += shard.cold_rows;
  return static_cast<std::int64_t>(rows);
}

std::int64_t Table::memory_bytes() const {
  std::int64_t bytes = rows_->bytes() + index_bytes() + candidate_bytes();
  for (const auto& late : late_) bytes += late->bytes();
  return bytes + (cold_ ? cold_->memory_bytes() : 0);
}

std::int64_t Table::index_bytes() const {
  std::size_t bytes = 0;
  for (const Index& index : indices_) bytes += index.bytes();
  return static_cast<std::int64_t>(bytes);
}

std::int64_t Table::candidate_bytes() const {
  std::size_t bytes = 0;
  for (const Shard& shard : shards_) bytes += shard.candidates.bytes();
  return static_cast<std::int64_t>(bytes);
}

std::int64_t Table::bytes_a_row() const {
  std::size_t bytes = rows_->stride() + (definition_.scored ? sizeof(Usage) : 0);
  for (const auto& late : late_) bytes += late->stride() + sizeof(std::uint32_t);
  return static_cast<std::int64_t>(bytes);
}

}  // namespace shoal::ps
