// SPDX-License-Identifier: Apache-2.0
// How what a worker pulls and pushes reaches the tables.
//
//   sync        the sums of all workers are one push, and nobody goes on before it is applied
//   async       a push is sent and not waited for; rows are as they happen to be
//   half_async  as async, of several batches at once, and rows are read again when they lack more than so many
//               batches of any worker
//   geo         rows are trained here, by an optimizer of their own, and every so many batches what became of
//               them is added to the tables
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "shoal/ps/tables.h"

namespace shoal::ps {

enum class Mode : std::uint8_t { Sync, Async, HalfAsync, Geo };  // as above
std::string_view name_of(Mode mode);                             // "sync", "half_async", …
std::optional<Mode> parse_mode(std::string_view name);           // the inverse; none: there is no such

struct ExchangeOptions {                  // alike for all workers, but for `worker`
  Mode mode = Mode::Sync;                 // which of them
  std::uint32_t worker = 0, workers = 1;  // which of how many this is
  std::uint32_t staleness = 4;            // half_async: batches that a row may lack
  std::uint32_t geo_steps = 20;           // geo: batches between two exchanges
  std::size_t cache_rows = 0;   // sync and half_async: of a table, kept here while they are as they should be
  DType wire = DType::Float32;  // Tables::set_wire
};
// Throws InvalidInput naming the option.
void check(const ExchangeOptions& options);

// One thread. Calls of all workers are alike, but for the keys.
class Exchange {
 public:
  using TableNumber = Tables::TableNumber;  // that of the tables
  virtual ~Exchange() = default;

  // A table that is asked for from now on. Throws InvalidInput where the mode does not go with the
  // definition.
  virtual void add(TableNumber table, const Definition& definition) = 0;
  // Keys that differ; rows as Table::pull gives them, and as new as the mode has them.
  virtual void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows) = 0;
  // That the next batch pulls these: they may be on their way while this one is worked on.
  virtual void expect(TableNumber, std::span<const std::uint64_t>) {}
  // The sums of a batch, of each table once; their worker and round are filled in here.
  virtual void push(std::span<Tables::PushTo> pushes) = 0;
  // Sends what this worker has kept back.
  virtual void flush() = 0;
  // The same, and what is pulled later has all that any worker has pushed until then.
  virtual void settle() = 0;
  virtual After settled() const = 0;  // what a pull has to wait for to read that
  // Rows may be others than they were.
  virtual void forget() = 0;
  // How many batches the row lacked that lacked most when it was read; none where nobody counts.
  virtual std::optional<std::uint64_t> stalest() const { return std::nullopt; }
};

// Borrows the tables. Throws InvalidInput as check() does.
std::unique_ptr<Exchange> make_exchange(Tables& tables, const ExchangeOptions& options);

}  // namespace shoal::ps
