// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/exchange.h"

#include "shoal/base/error.h"
#include "shoal/base/names.h"
#include "shoal/base/text.h"
#include "shoal/ps/exchanges.h"
#include "shoal/ps/places.h"
#include "shoal/ps/row_cache.h"

namespace shoal::ps {

static constexpr Names<Mode, 4> kModes = {{
    {Mode::Sync, "sync"},
    {Mode::Async, "async"},
    {Mode::HalfAsync, "half_async"},
    {Mode::Geo, "geo"},
}};

std::string_view name_of(Mode mode) { return name_in(kModes, mode); }
std::optional<Mode> parse_mode(std::string_view name) { return parse_in(kModes, name); }

void check(const ExchangeOptions& options) {
  SHOAL_CHECK(options.worker < options.workers, InvalidInput, "ps: worker ", options.worker, " of ",
              options.workers);
  SHOAL_CHECK(options.geo_steps > 0, InvalidInput, "ps: geo_steps is 0, wanted at least 1");
  SHOAL_CHECK(options.wire == DType::Float32 || options.wire == DType::BFloat16, InvalidInput,
              "ps: rows go over the wire as ", name_of(options.wire), "; wanted f32 or bf16");
}

namespace {

// A row here is as the tables have it until somebody writes it, and a push says what the others wrote. Rows that
// the next batch wants are asked for while this one is worked on, and those of them that it wrote are asked for
// again: what is pulled is what it would be without any of this.
class Sync final : public Rounds {
 public:
  using Rounds::Rounds;

  void add(TableNumber table, const Definition& definition) override {
    Rounds::add(table, definition);
    of_.emplace(table, OfTable{.definition = definition,
                               .row_bytes = row_bytes(definition),
                               .cache = {row_bytes(definition), options_.cache_rows}});
  }

  void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows) override {
    if (options_.cache_rows == 0) return tables_.pull(table, keys, rows);
    OfTable& of = of_.at(table);
    arrive(of);
    missing_.read(
        keys, rows.bytes(), of.row_bytes, [&](std::uint64_t key) { return of.cache.find(key, 0); },
        [&](auto some, std::span<std::byte> to) {
          tables_.pull(table, some, WritableNumbers(to, rows.is_wide()));
          of.cache.put(some, to, 0);
        });
  }

  void expect(TableNumber table, std::span<const std::uint64_t> keys) override {
    if (options_.cache_rows == 0) return;
    OfTable& of = of_.at(table);
    arrive(of);
    of.expected.insert(of.expected.end(), keys.begin(), keys.end());
    ask(table, of, [](std::uint64_t) { return true; });
  }

  void push(std::span<Tables::PushTo> pushes) override {
    ++batch_;
    const bool tells = options_.cache_rows > 0;
    for (Tables::PushTo& to : pushes) {
      number(to.push);
      to.push.is_joint = options_.workers > 1;
      if (tells) to.others = &of_.at(to.table).others;
    }
    try {
      for (const Tables::PushTo& to : pushes) {
        const Definition& definition = of_.at(to.table).definition;
        ps::check(to.push, definition, width_of(definition));
      }
    } catch (const Error& error) {
      if (options_.workers > 1)
        tables_.refuse(batch_, concat(error.what(), " (of worker ", options_.worker, ")"));
      throw;
    }
    try {
      tables_.push(pushes);
      flushed_ = batch_;
      if (tells) written(pushes);
    } catch (...) {
      forget();
      throw;
    }
  }

  void forget() override {
    for (auto& [table, of] : of_) {
      of.cache.clear();
      of.coming.reset();
      of.expected.clear();
    }
  }

 private:
  struct OfTable {
    Definition definition;
    std::size_t row_bytes = 0;
    RowCache cache;
    std::vector<std::uint64_t> expected = {};  // of the next batch
    std::vector<std::uint64_t> asked = {};     // what is coming
    std::unique_ptr<Tables::Pulling> coming = {};
    std::vector<std::uint64_t> others = {};  // what other workers wrote in a push
  };

  static void arrive(OfTable& of) {
    if (const auto coming = std::exchange(of.coming, nullptr)) of.cache.put(of.asked, coming->wait(), 0);
  }
  // For those of the expected keys that are not here, and that `wants` says.
  template <class Wants>
  void ask(TableNumber table, OfTable& of, const Wants& wants) {
    of.asked.clear();
    for (const std::uint64_t key : of.expected)
      if (of.cache.find(key, 0) == nullptr && wants(key)) of.asked.push_back(key);
    if (!of.asked.empty()) of.coming = tables_.start_pull(table, of.asked);
  }
  void written(std::span<Tables::PushTo> pushes) {
    for (const Tables::PushTo& to : pushes) {
      OfTable& of = of_.at(to.table);
      arrive(of);  // it was read before the push
      Places gone(to.push.keys.size() + of.others.size());
      for (const auto keys : {to.push.keys, std::span<const std::uint64_t>(of.others)})
        for (const std::uint64_t key : keys) {
          gone.of(key);
          of.cache.drop(key);
        }
      ask(to.table, of, [&](std::uint64_t key) { return gone.find(key) != Places::kNone; });
      of.expected.clear();
    }
  }

  std::map<TableNumber, OfTable> of_;
  Missing missing_;
};

class Async final : public Rounds {
 public:
  using Rounds::Rounds;
  void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows) override {
    tables_.pull(table, keys, rows, after(floor_));
  }
  void push(std::span<Tables::PushTo> pushes) override {
    ++batch_;
    for (Tables::PushTo& to : pushes) number(to.push);
    tables_.send(pushes);
    flushed_ = batch_;
  }
};

}  // namespace

std::unique_ptr<Exchange> make_exchange(Tables& tables, const ExchangeOptions& options) {
  check(options);
  tables.set_wire(options.wire);
  switch (options.mode) {
    case Mode::Sync: return std::make_unique<Sync>(tables, options);
    case Mode::Async: return std::make_unique<Async>(tables, options);
    case Mode::HalfAsync: return make_half_async(tables, options);
    case Mode::Geo: return make_geo(tables, options);
  }
  fail(ErrorKind::Internal, "ps: an exchange of no mode");
}

}  // namespace shoal::ps
