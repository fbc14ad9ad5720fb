// SPDX-License-Identifier: Apache-2.0
// A worker sends its sums with every m-th batch, and a pull waits for the last of these of all workers: when batch
// t is worked on, a row has all batches up to (t-1)/m·m, so it lacks m-1 at most; it is kept until it would lack
// more than allowed. Nobody waits for one that waits for it: a worker has sent what another at the same batch
// waits for.
//
//   m = 2   batch   1   2   3   4   5   6
//   sent                ^       ^       ^
//   read as of      0   0   2   2   4   4      or from here, as of 4 less than the batch before
#include "shoal/ps/exchanges.h"
#include "shoal/ps/row_cache.h"
#include "shoal/ps/row_sums.h"

namespace shoal::ps {

namespace {

class HalfAsync final : public Rounds {
 public:
  HalfAsync(Tables& tables, const ExchangeOptions& options)
      : Rounds(tables, options), batches_(std::max<std::uint32_t>(1, options.staleness / 2)) {}

  void add(TableNumber table, const Definition& definition) override {
    Rounds::add(table, definition);
    of_.emplace(table, OfTable{.definition = definition,
                               .width = width_of(definition),
                               .row_bytes = row_bytes(definition),
                               .cache = {row_bytes(definition), options_.cache_rows}});
  }

  void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows) override {
    OfTable& of = of_.at(table);
    const std::uint64_t sent = std::max(floor_, batch_ / batches_ * batches_),
                        oldest =
                            std::max(floor_, batch_ - std::min<std::uint64_t>(batch_, options_.staleness));
    missing_.read(
        keys, rows.bytes(), of.row_bytes,
        [&](std::uint64_t key) {
          const std::byte* const row = of.cache.find(key, oldest);
          if (row != nullptr) stalest_ = std::max(stalest_, batch_ - of.cache.as_of(key));
          return row;
        },
        [&](auto some, std::span<std::byte> to) {
          stalest_ = std::max(stalest_, batch_ - sent);
          tables_.pull(table, some, WritableNumbers(to, rows.is_wide()), after(sent));
          of.cache.put(some, to, sent);
        });
  }

  void push(std::span<Tables::PushTo> pushes) override {
    for (const Tables::PushTo& to : pushes)
      ps::check(to.push, of_.at(to.table).definition, of_.at(to.table).width);
    for (const Tables::PushTo& to : pushes) of_.at(to.table).sums.add(to.push, of_.at(to.table).width);
    ++batch_;
    if (batch_ % batches_ == 0) send();
  }

  void flush() override {
    if (flushed_ < batch_) send();
    tables_.settle();
  }
  void forget() override {
    for (auto& [table, of] : of_) of.cache.clear();
  }
  std::optional<std::uint64_t> stalest() const override { return stalest_; }

 private:
  struct OfTable {
    Definition definition;
    std::size_t width = 0, row_bytes = 0;
    RowCache cache;
    RowSums sums = {};
  };

  void send() {
    flushed_ = batch_;
    for (auto& [table, of] : of_) {
      send_alone(table, of.sums.push());
      of.sums.clear();
    }
  }

  const std::uint32_t batches_;
  std::uint64_t stalest_ = 0;
  std::map<TableNumber, OfTable> of_;
  Missing missing_;
};

}  // namespace

std::unique_ptr<Exchange> make_half_async(Tables& tables, const ExchangeOptions& options) {
  return std::make_unique<HalfAsync>(tables, options);
}

}  // namespace shoal::ps
