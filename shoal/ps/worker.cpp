// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/worker.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"

namespace shoal::ps {

void Worker::Sums::clear() {
  places.clear();
  has_places = false;
  keys.clear();
  gradients.clear();
  shows.clear();
  clicks.clear();
}

Worker::TableNumber Worker::add(const Definition& definition, std::uint64_t num_ids, Padding padding) {
  const TableNumber number = tables_.create(definition);
  exchange_->add(number, definition);
  of_.push_back({.definition = definition,
                 .number = number,
                 .width = width_of(definition),
                 .num_ids = num_ids,
                 .is_wide = is_wide(definition.dtype),
                 .padding = padding});
  return static_cast<TableNumber>(of_.size() - 1);
}

[[noreturn]] static void refuse_id(const std::string& table, std::int64_t id, std::uint64_t num_ids) {
  fail(ErrorKind::InvalidInput, "ps: table ", in_quotes(table), ": there is no id ", id, "; ",
       num_ids == 0 ? std::string("ids are not negative") : concat("it has ids from 0 to ", num_ids - 1));
}

void Worker::pull(TableNumber table, std::span<const std::int64_t> ids, std::int64_t padding,
                  std::span<std::int32_t> places, WritableNumbers rows) {
  OfTable& of = of_.at(table);
  SHOAL_CHECK(places.size() == ids.size() && rows.size() == ids.size() * of.width, Internal, "ps: table ",
              in_quotes(of.definition.name), ": a pull of ", ids.size(), " ids has room for ", places.size(),
              " places and ", rows.size(), " values");
  places_.clear();
  places_.reserve(ids.size());
  keys_.clear();
  const std::uint64_t end = of.end();
  const bool has_padding = padding >= 0;
  SHOAL_CHECK(
      !has_padding || !of.put.contains(padding), InvalidInput, "ps: table ", in_quotes(of.definition.name),
      ": the row of id ", padding,
      " was set, and it is padding, which reads as zeros in a table whose rows begin by its own rule. "
      "Remedy: leave the rule (initial) out, so that rows begin with the model's");
  std::size_t padding_place = 0;  // among the distinct ones, if it is read
  bool reads_padding = false;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto key = static_cast<std::uint64_t>(ids[i]);  // a negative one is too large
    if (key >= end) refuse_id(of.definition.name, ids[i], of.num_ids);
    if (has_padding && ids[i] == padding) {
      places[i] = kPadding;
      reads_padding = of.padding == Padding::Row;
      continue;
    }
    const std::uint32_t place = places_.of(key);
    places[i] = static_cast<std::int32_t>(place);
    if (place == keys_.size()) keys_.push_back(key);
  }
  if (reads_padding) {  // the last of them: gradients count the others
    padding_place = keys_.size();
    keys_.push_back(static_cast<std::uint64_t>(padding));
  }
  const std::size_t bytes = of.row_bytes();
  std::byte* const to = rows.bytes().data();
  if (keys_.size() == ids.size() && !reads_padding) return pull_distinct(of, rows);
  rows_.resize(keys_.size() * bytes);
  pull_distinct(of, WritableNumbers(rows_, of.is_wide));
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (places[i] == kPadding && !reads_padding)
      std::memset(to + i * bytes, 0, bytes);
    else
      std::memcpy(to + i * bytes,
                  rows_.data() +
                      (places[i] == kPadding ? padding_place : static_cast<std::size_t>(places[i])) * bytes,
                  bytes);
}

void Worker::pull_distinct(OfTable& of, WritableNumbers rows) {
  exchange_->pull(of.number, keys_, rows);
  if (of.expected.empty()) return;
  exchange_->expect(of.number, of.expected);
  of.expected.clear();
}

void Worker::expect(TableNumber table, std::span<const std::int64_t> ids, std::int64_t padding) {
  OfTable& of = of_.at(table);
  Places places(of.expected.size() + ids.size());
  for (const std::uint64_t key : of.expected) places.of(key);
  for (const std::int64_t id : ids) {
    const auto key = static_cast<std::uint64_t>(id);
    if (key >= of.end() || (padding >= 0 && id == padding)) continue;
    if (places.of(key) == of.expected.size()) of.expected.push_back(key);
  }
}

// In a place of its own for each key, in the order of the batch.
template <class T>
void Worker::add(OfTable& to, const Pulled& pulled, double weight) {
  Sums& sums = to.sums;
  const std::size_t width = to.width;
  const auto gradients = pulled.gradients.of<T>();
  const bool is_first = sums.keys.empty();
  std::vector<std::uint32_t> at;  // by the pull's place
  if (!is_first) {
    sums.places.reserve(sums.keys.size() + pulled.ids.size());
    if (!sums.has_places)
      for (const std::uint64_t key : sums.keys) sums.places.of(key);
    sums.has_places = true;
  }
  const auto factor = static_cast<T>(weight);
  const std::size_t of_sample =
      pulled.clicks.empty() ? 1 : std::max<std::size_t>(pulled.ids.size() / pulled.clicks.size(), 1);
  for (std::size_t i = 0; i < pulled.ids.size(); ++i) {
    if (pulled.places[i] == kPadding) continue;
    const auto place = static_cast<std::size_t>(pulled.places[i]);
    if (place == at.size()) {  // the first of its id
      const auto key = static_cast<std::uint64_t>(pulled.ids[i]);
      at.push_back(is_first ? static_cast<std::uint32_t>(place) : sums.places.of(key));
      if (at.back() == sums.keys.size()) {
        sums.keys.push_back(key);
        sums.shows.push_back(0);
        sums.clicks.push_back(0);
        sums.gradients.resize(sums.gradients.size() + width * sizeof(T));
      }
    }
    sums.shows[at[place]] += pulled.count;
    if (!pulled.clicks.empty()) {  // one below 0 is for the push to refuse, on all workers
      const float clicks = pulled.clicks[i / of_sample];
      sums.clicks[at[place]] +=
          pulled.count * (clicks >= 0 ? clicks : std::numeric_limits<float>::quiet_NaN());
    }
    T* const sum = reinterpret_cast<T*>(sums.gradients.data()) + at[place] * width;
    const T* const gradient = gradients.data() + i * width;
    if (weight == 1)
      for (std::size_t value = 0; value < width; ++value) sum[value] += gradient[value];
    else
      for (std::size_t value = 0; value < width; ++value) sum[value] += factor * gradient[value];
  }
}

void Worker::add(const Pulled& pulled, double weight) {
  OfTable& to = of_.at(pulled.table);
  SHOAL_CHECK(pulled.places.size() == pulled.ids.size() &&
                  pulled.gradients.size() == pulled.ids.size() * to.width &&
                  (pulled.ids.empty() || pulled.gradients.is_wide() == to.is_wide),
              Internal, "ps: table ", in_quotes(to.definition.name), ": ", pulled.gradients.size(),
              " gradients of ", pulled.ids.size(), " ids");
  SHOAL_CHECK(pulled.clicks.empty() || pulled.ids.size() % pulled.clicks.size() == 0, Internal, "ps: table ",
              in_quotes(to.definition.name), ": clicks of ", pulled.clicks.size(), " samples, and ",
              pulled.ids.size(), " ids");
  with_number(to.is_wide, [&](auto number) { add<decltype(number)>(to, pulled, weight); });
}

void Worker::push(std::span<const Pulled> pulled, std::uint64_t step, double rate) {
  for (OfTable& of : of_) of.sums.clear();
  for (const Pulled& one : pulled) add(one, 1);
  push_all(step, rate);
}

void Worker::add_up(std::span<const Pulled> pulled, bool is_first, double weight) {
  if (is_first)
    for (OfTable& of : of_) of.sums.clear();
  if (weight == 0) return;  // no target counts: a mean of none is no number
  for (const Pulled& one : pulled) add(one, weight);
}

void Worker::push_sums(double divisor, std::uint64_t step, double rate) {
  if (divisor != 1)
    for (OfTable& of : of_)
      with_number(of.is_wide, [&](auto number) {
        using T = decltype(number);
        const std::span<T> all(reinterpret_cast<T*>(of.sums.gradients.data()),
                               of.sums.gradients.size() / sizeof(T));
        for (T& each : all) each /= static_cast<T>(divisor);
      });
  push_all(step, rate);
}

void Worker::push_all(std::uint64_t step, double rate) {
  std::vector<Tables::PushTo> pushes;
  for (const OfTable& of : of_)
    pushes.push_back({.table = of.number,
                      .push = {.keys = of.sums.keys,
                               .gradients = Numbers(of.sums.gradients, of.is_wide),
                               .shows = of.definition.scored ? std::span<const float>(of.sums.shows)
                                                             : std::span<const float>(),
                               .clicks = of.definition.scored ? std::span<const float>(of.sums.clicks)
                                                              : std::span<const float>(),
                               .step = step,
                               .rate = rate * of.rate}});
  try {
    exchange_->push(pushes);
  } catch (...) {
    for (OfTable& of : of_) of.sums.clear();
    throw;
  }
  for (OfTable& of : of_) of.sums.clear();
}

void Worker::clear(TableNumber table) {
  tables_.clear(of_.at(table).number);
  exchange_->forget();
}

Shrunk Worker::shrink(TableNumber table, std::uint32_t day) {
  const Shrunk shrunk = tables_.shrink(of_.at(table).number, day);
  exchange_->forget();
  return shrunk;
}

SaveReport Worker::load(TableNumber table, const std::filesystem::path& path) {
  DiskFileSystem files;
  const auto saves = saves_up_to(files, path);
  clear(table);
  SaveReport report;
  for (const auto& save : saves) report += tables_.load(of_.at(table).number, save);
  return report;
}

void Worker::note_put(TableNumber table, std::span<const std::int64_t> ids) {
  exchange_->forget();
  if (OfTable& of = of_.at(table); of.padding == Padding::Zeros) of.put.insert(ids.begin(), ids.end());
}

void Worker::put(TableNumber table, std::span<const std::int64_t> ids, Numbers values) {
  const OfTable& of = of_.at(table);
  std::vector<std::uint64_t> keys;
  for (const std::int64_t id : ids) {
    keys.push_back(static_cast<std::uint64_t>(id));
    if (keys.back() >= of.end()) refuse_id(of.definition.name, id, of.num_ids);
  }
  tables_.put(of.number, keys, values);
  exchange_->forget();
}

void Worker::put(TableNumber table, std::int64_t first, Numbers values) {
  const OfTable& of = of_.at(table);
  std::vector<std::uint64_t> keys(values.size() / of.width);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::uint64_t>(first) + i;
  tables_.put(of.number, keys, values);
  exchange_->forget();
}

void Worker::read(TableNumber table, std::int64_t first, WritableNumbers rows) {
  struct Whole {
    Whole(Tables& all, DType then) : tables(all), wire(then) { tables.set_wire(DType::Float32); }
    ~Whole() { tables.set_wire(wire); }
    Tables& tables;
    const DType wire;
  } const whole(tables_, wire_);
  const OfTable& of = of_.at(table);
  std::vector<std::uint64_t> keys(rows.size() / of.width);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::uint64_t>(first) + i;
  tables_.pull(of.number, keys, rows, exchange_->settled());
}

}  // namespace shoal::ps
