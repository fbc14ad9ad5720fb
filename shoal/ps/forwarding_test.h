// SPDX-License-Identifier: Apache-2.0
// Tables that hand everything on, for tests that look at, or change, what goes through.
#pragma once

#include <memory>
#include <utility>

#include "shoal/ps/tables.h"

namespace shoal::ps::test {

class Forwarding : public Tables {
 public:
  explicit Forwarding(std::unique_ptr<Tables> tables) : tables_(std::move(tables)) {}
  TableNumber create(const Definition& definition) override { return tables_->create(definition); }
  void set_wire(DType dtype) override { tables_->set_wire(dtype); }
  std::uint64_t last_round(TableNumber table) const override { return tables_->last_round(table); }
  void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows,
            const After& after) override {
    tables_->pull(table, keys, rows, after);
  }
  std::unique_ptr<Pulling> start_pull(TableNumber table, std::span<const std::uint64_t> keys) override {
    return tables_->start_pull(table, keys);
  }
  void push(std::span<const PushTo> pushes) override { tables_->push(pushes); }
  void send(std::span<const PushTo> pushes) override { tables_->send(pushes); }
  void settle() override { tables_->settle(); }
  void refuse(std::uint64_t round, const std::string& why) override { tables_->refuse(round, why); }
  void put(TableNumber table, std::span<const std::uint64_t> keys, Numbers values) override {
    tables_->put(table, keys, values);
  }
  void clear(TableNumber table) override { tables_->clear(table); }
  Shrunk shrink(TableNumber table, std::uint32_t day) override { return tables_->shrink(table, day); }
  void begin_save(TableNumber table, const std::filesystem::path& path, const Saved& as) override {
    tables_->begin_save(table, path, as);
  }
  Saved last_save(TableNumber table) override { return tables_->last_save(table); }
  std::optional<SaveReport> saved(TableNumber table) override { return tables_->saved(table); }
  SaveReport load(TableNumber table, const std::filesystem::path& path) override {
    return tables_->load(table, path);
  }
  std::pair<std::uint64_t, std::int64_t> digest(TableNumber table) override { return tables_->digest(table); }

 private:
  const std::unique_ptr<Tables> tables_;
};

}  // namespace shoal::ps::test
