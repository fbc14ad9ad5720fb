// SPDX-License-Identifier: Apache-2.0
// Where a worker's tables are: on servers (client.h), or in its own process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/ps/cold_store.h"
#include "shoal/ps/save.h"
#include "shoal/ps/table.h"

namespace shoal::ps {

// One thread at a time.
class Tables {
 public:
  using TableNumber = std::uint32_t;  // as create() gave it
  struct PushTo {                     // a push, and the table that it is for
    TableNumber table = 0;
    Push push;
    std::vector<std::uint64_t>* others = nullptr;  // of a joint push: gets the keys that other workers wrote
  };

  virtual ~Tables() = default;
  // Makes the table, or finds it. Throws InvalidInput naming the field where there is another of the name.
  virtual TableNumber create(const Definition& definition) = 0;
  // As what rows and gradients of tables in float32 go over a wire, to the nearest: Float32 at first, or BFloat16.
  // Differences go whole.
  virtual void set_wire(DType) {}
  virtual std::uint64_t last_round(TableNumber table) const = 0;  // pushed to it before this was made
  // As that of Table, once what `after` says has come; else at once.
  virtual void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows,
                    const After& after) = 0;
  void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows) {
    pull(table, keys, rows, {});
  }
  // A pull that is under way. It ends before the tables do.
  class Pulling {
   public:
    virtual ~Pulling() = default;
    virtual std::span<const std::byte> wait() = 0;  // the rows, as Table::pull writes them
  };
  // As they are when it is answered, which is before whatever is asked later.
  virtual std::unique_ptr<Pulling> start_pull(TableNumber table, std::span<const std::uint64_t> keys) = 0;
  // Looks at all of them before it sends the first, throws InvalidInput as check() does, and returns when
  // they are applied.
  virtual void push(std::span<const PushTo> pushes) = 0;
  // Without waiting: what is refused is thrown by a later call, settle() at the latest.
  virtual void send(std::span<const PushTo> pushes) = 0;
  virtual void settle() = 0;  // until all that was sent is applied
  // Instead of pushing jointly: the others, those that wait among them, get an InvalidInput of that text.
  virtual void refuse(std::uint64_t round, const std::string& why) = 0;
  // Rows that begin with these values from now on, those that were there too.
  virtual void put(TableNumber table, std::span<const std::uint64_t> keys, Numbers values) = 0;
  virtual void clear(TableNumber table) = 0;  // no rows are left, nor what was remembered of keys
  virtual Shrunk shrink(TableNumber table, std::uint32_t day) = 0;  // Table::set_day, then Table::shrink
  // In full, to files of that path (files_of()) in a folder that all servers see, and back from those, of any
  // number of servers, into a table without rows, or of a delta into one as of the save before it. `origin`: as that of
  // SaveOptions. Throw as save() and load() do.
  SaveReport save(TableNumber table, const std::filesystem::path& path, std::uint64_t origin);
  // The same while others go on: of the rows as they are when begin_save() returns. One of a table at a time. saved()
  // says none until it is whole; in this process each call brings it on a little.
  // Of number 0 it is in full, of a new origin; else a delta of last_save(), whose number is one less.
  virtual void begin_save(TableNumber table, const std::filesystem::path& path, const Saved& as) = 0;
  // Which save what changed since is known of, everywhere; of origin 0 where there is none, or servers differ.
  virtual Saved last_save(TableNumber table) = 0;
  virtual std::optional<SaveReport> saved(TableNumber table) = 0;
  virtual SaveReport load(TableNumber table, const std::filesystem::path& path) = 0;
  virtual std::pair<std::uint64_t, std::int64_t> digest(TableNumber table) = 0;  // and the number of rows
};

// In this process, for one worker.
std::unique_ptr<Tables> tables_in_process(const ColdOptions& cold = {});

}  // namespace shoal::ps
