// SPDX-License-Identifier: Apache-2.0
// Rows that were touched are in a table of the worker's own, beside what they were when the servers had them last:
//
//   here   1.0 ── batches ──► 1.3     0.3 more than when it was read    ── added there ──►  2.0 + 0.3
//   there  1.0 ── others ───► 2.0                                       ◄── read again ───  2.3
//
// Rows that were not touched between two exchanges are read again when they are touched next.
#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/exchanges.h"
#include "shoal/ps/row_sums.h"

namespace shoal::ps {

namespace {

class Geo final : public Rounds {
 public:
  using Rounds::Rounds;

  void add(TableNumber table, const Definition& definition) override {
    Rounds::add(table, definition);
    Definition own = {.name = definition.name,
                      .seed = definition.seed,
                      .dtype = is_wide(definition.dtype) ? DType::Float64 : DType::Float32,
                      .shards = 1,
                      .parts = definition.parts,
                      .admission = {.candidates = 1}};
    for (const Part& part : own.parts)
      SHOAL_CHECK(part.earned_at == 0, InvalidInput, "ps: table ", in_quotes(definition.name),
                  " has a part that its keys have to earn, and in geo mode the worker trains rows and knows "
                  "no scores. Remedy: earned_at = 0, or another mode");
    OfTable of = {.row_bytes = row_bytes(definition), .own = Table(own)};
    of_.emplace(table, std::move(of));
  }

  void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows) override {
    OfTable& of = of_.at(table);
    std::vector<std::uint64_t> old;
    of.places.reserve(keys.size());
    for (const std::uint64_t key : keys) {
      const std::uint32_t at = of.places.of(key);
      if (at == of.as_of.size()) {
        of.as_of.push_back(kNever);
        of.base.resize(of.base.size() + of.row_bytes);
      }
      if (of.as_of[at] == kNever || of.as_of[at] < flushed_) old.push_back(key);
    }
    if (!old.empty()) read(table, of, old);
    of.own.pull(keys, rows);
  }

  void push(std::span<Tables::PushTo> pushes) override {
    for (const Tables::PushTo& to : pushes) {
      const OfTable& of = of_.at(to.table);
      ps::check(to.push, of.own.definition(), of.own.width());
      for (const std::uint64_t key : to.push.keys)
        SHOAL_CHECK(of.places.find(key) != Places::kNone, InvalidInput, "ps: table ",
                    in_quotes(of.own.definition().name), ": key ", key,
                    " is pushed and was never pulled, and in geo mode there is no row of it here");
    }
    for (const Tables::PushTo& to : pushes) {
      OfTable& of = of_.at(to.table);
      of.own.push(to.push);
      of.touched.add(without_gradients(to.push), 0);
    }
    ++batch_;
    if (batch_ - flushed_ < options_.geo_steps) return;
    send();
    for (auto& [table, of] : of_) {
      const Push touched = of.touched.push();
      if (!touched.keys.empty()) read(table, of, touched.keys);
      of.touched.clear();
    }
  }

  void flush() override {
    if (flushed_ < batch_) {
      send();
      for (auto& [table, of] : of_) of.touched.clear();
    }
    tables_.settle();
  }
  void forget() override {
    for (auto& [table, of] : of_) std::ranges::fill(of.as_of, kNever);
  }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  struct OfTable {
    std::size_t row_bytes = 0;
    Table own;
    Places places = {};
    std::vector<std::uint64_t> as_of = {};  // by place: after which batch it was read, kNever if not
    std::vector<std::byte> base = {};       // by place: the row when it was read
    RowSums touched = {};                   // keys, shows and clicks since the last exchange
  };

  static Push without_gradients(Push push) {
    push.gradients = {};
    return push;
  }

  // What this worker had of them has been sent before.
  void read(TableNumber table, OfTable& of, std::span<const std::uint64_t> keys) {
    const bool wide = is_wide(of.own.definition().dtype);
    std::vector<std::byte> there(keys.size() * of.row_bytes), here(there.size());
    tables_.pull(table, keys, WritableNumbers(there, wide), after(floor_));
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (!of.own.contains(keys[i])) of.own.put(keys.subspan(i, 1), Numbers(row_of(there, of, i), wide));
    of.own.pull(keys, WritableNumbers(here, wide));
    std::vector<std::byte> missing = there;
    subtract(missing, here, wide);
    of.own.push({.keys = keys, .gradients = Numbers(missing, wide), .of = PushOf::Differences});
    of.own.pull(keys, WritableNumbers(here, wide));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t at = of.places.find(keys[i]);
      of.as_of[at] = batch_;
      std::memcpy(of.base.data() + at * of.row_bytes, row_of(here, of, i).data(), of.row_bytes);
    }
  }

  static std::span<const std::byte> row_of(std::span<const std::byte> rows, const OfTable& of,
                                           std::size_t i) {
    return rows.subspan(i * of.row_bytes, of.row_bytes);
  }
  static void subtract(std::span<std::byte> from, std::span<const std::byte> what, bool wide) {
    with_number(wide, [&](auto number) {
      using T = decltype(number);
      T* const values = reinterpret_cast<T*>(from.data());
      for (std::size_t value = 0; value < from.size() / sizeof(T); ++value)
        values[value] -= reinterpret_cast<const T*>(what.data())[value];
    });
  }

  // What became of the rows that were touched.
  void send() {
    flushed_ = batch_;
    for (auto& [table, of] : of_) {
      Push push = of.touched.push();
      const bool wide = is_wide(of.own.definition().dtype);
      std::vector<std::byte> now(push.keys.size() * of.row_bytes), base(now.size());
      of.own.pull(push.keys, WritableNumbers(now, wide));
      for (std::size_t i = 0; i < push.keys.size(); ++i)
        std::memcpy(base.data() + i * of.row_bytes,
                    of.base.data() + of.places.find(push.keys[i]) * of.row_bytes, of.row_bytes);
      subtract(now, base, wide);
      push.gradients = Numbers(now, wide);
      push.of = PushOf::Differences;
      send_alone(table, push);
    }
  }

  std::map<TableNumber, OfTable> of_;
};

}  // namespace

std::unique_ptr<Exchange> make_geo(Tables& tables, const ExchangeOptions& options) {
  return std::make_unique<Geo>(tables, options);
}

}  // namespace shoal::ps
