// SPDX-License-Identifier: Apache-2.0
// One of the workers that train a model whose rows are in tables: ids in, rows out; gradients in, one push a
// step. An id is asked for and pushed once, however often a batch has it.
//
//   ids      7  3  7  9       distinct  7 3 9  ── pull ─►  rows of 7, 3, 9
//   places   0  1  0  2       row i of the batch is that of distinct[places[i]]
//   gradients of the batch's rows, summed by place  ── push ─►  7: g0 + g2   3: g1   9: g3
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shoal/ps/exchange.h"
#include "shoal/ps/places.h"
#include "shoal/ps/tables.h"

namespace shoal::ps {

// One thread at a time.
class Worker {
 public:
  using TableNumber = Tables::TableNumber;
  static constexpr std::int32_t kPadding = -1;  // the place of an id whose gradients go nowhere
  // What the row of a padding id is: zeros, or as it was put into the table.
  enum class Padding { Zeros, Row };

  // Borrows the tables.
  Worker(Tables& tables, const ExchangeOptions& options)
      : tables_(tables), wire_(options.wire), exchange_(make_exchange(tables, options)) {}

  // `num_ids`: ids are below it; 0: any that is not negative. Throws as Tables::create.
  TableNumber add(const Definition& definition, std::uint64_t num_ids, Padding padding = Padding::Zeros);
  std::uint64_t num_ids(TableNumber table) const { return of_.at(table).num_ids; }
  const Definition& definition(TableNumber table) const { return of_.at(table).definition; }
  std::size_t width(TableNumber table) const { return of_.at(table).width; }

  // The rows of ids, and their places. Throws InvalidInput naming table and id for one that there cannot be.
  void pull(TableNumber table, std::span<const std::int64_t> ids, std::int64_t padding,
            std::span<std::int32_t> places, WritableNumbers rows);
  // That the next step pulls these, once the next pull of the table is done; those that there cannot be are left
  // out. It changes no result.
  void expect(TableNumber table, std::span<const std::int64_t> ids, std::int64_t padding);

  // Gradients of rows that were pulled, as the pull had ids and places.
  struct Pulled {
    TableNumber table = 0;
    std::span<const std::int64_t> ids;
    std::span<const std::int32_t> places;
    Numbers gradients;
    float count = 1;                     // what each id is shown by
    std::span<const float> clicks = {};  // of equal parts of the ids, in their order; none: of no sample
  };
  // Of a step: all workers call it alike, with those of their part of the batch. Nothing is pushed where a
  // gradient of any of them is not finite: throws InvalidInput then, in sync mode on all of them.
  void push(std::span<const Pulled> pulled, std::uint64_t step, double rate);
  // The same of several micro-batches: each adds `weight` times its gradients to the sums, the first one clears
  // them before.
  void add_up(std::span<const Pulled> pulled, bool is_first, double weight);
  void push_sums(double divisor, std::uint64_t step, double rate);

  // As those of the exchange.
  void flush() {
    exchange_->flush();
    exchange_->forget();
  }
  void settle() { exchange_->settle(); }
  std::optional<std::uint64_t> stalest() const { return exchange_->stalest(); }

  // What multiplies the rate of each push, of this table alone.
  void set_rate(TableNumber table, double factor) { of_.at(table).rate = factor; }

  // What follows asks the tables themselves, which do not know of what has not been flushed; what it changes is
  // read anew here.
  void clear(TableNumber table);
  // As those of the tables; load() lets go of the rows that there are, and takes all saves_up_to() that path.
  void begin_save(TableNumber table, const std::filesystem::path& path, const Saved& as) {
    tables_.begin_save(of_.at(table).number, path, as);
  }
  Saved last_save(TableNumber table) { return tables_.last_save(of_.at(table).number); }
  void settle_pushes() { tables_.settle(); }  // that were sent; those kept back are not
  std::optional<SaveReport> saved(TableNumber table) { return tables_.saved(of_.at(table).number); }
  SaveReport load(TableNumber table, const std::filesystem::path& path);
  void forget() { exchange_->forget(); }  // another worker has changed rows
  std::int64_t num_rows(TableNumber table) { return tables_.digest(of_.at(table).number).second; }
  Shrunk shrink(TableNumber table, std::uint32_t day);
  // Rows that begin with these values; of ids from `first` on.
  void put(TableNumber table, std::span<const std::int64_t> ids, Numbers values);
  void note_put(TableNumber table, std::span<const std::int64_t> ids);  // that some worker has put
  void put(TableNumber table, std::int64_t first, Numbers values);
  // Rows of ids from `first` on, as they are whatever the wire rounds.
  void read(TableNumber table, std::int64_t first, WritableNumbers rows);

 private:
  // What is to be pushed of a table.
  struct Sums {
    Places places;
    bool has_places = false;  // of the keys; those of one pull alone are the pull's
    std::vector<std::uint64_t> keys;
    std::vector<std::byte> gradients;
    std::vector<float> shows, clicks;
    void clear();
  };
  struct OfTable {
    Definition definition;
    TableNumber number = 0;  // of tables_
    std::size_t width = 0;
    std::uint64_t num_ids = 0;
    bool is_wide = false;
    Padding padding = Padding::Zeros;
    std::set<std::int64_t> put = {};  // ids, where padding reads as zeros
    double rate = 1;
    std::vector<std::uint64_t> expected = {};
    Sums sums = {};
    std::uint64_t end() const { return num_ids == 0 ? std::uint64_t{1} << 63 : num_ids; }  // of ids
    std::size_t row_bytes() const { return width * number_bytes(is_wide); }
  };

  void pull_distinct(OfTable& of, WritableNumbers rows);  // of keys_
  template <class T>
  static void add(OfTable& to, const Pulled& pulled, double weight);
  void add(const Pulled& pulled, double weight);
  void push_all(std::uint64_t step, double rate);

  Tables& tables_;
  const DType wire_;
  const std::unique_ptr<Exchange> exchange_;
  std::vector<OfTable> of_;
  // Of a pull.
  Places places_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::byte> rows_;
};

}  // namespace shoal::ps
