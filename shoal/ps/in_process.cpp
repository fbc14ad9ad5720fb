// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/tables.h"

namespace shoal::ps {

namespace {

class InProcess final : public Tables {
 public:
  explicit InProcess(const ColdOptions& cold) : cold_(cold) {}
  TableNumber create(const Definition& definition) override {
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      if (tables_[i]->definition().name != definition.name) continue;
      const std::string differs = difference(tables_[i]->definition(), definition);
      SHOAL_CHECK(differs.empty(), InvalidInput, "ps: table ", in_quotes(definition.name),
                  " is there already, and another one: ", differs);
      return static_cast<TableNumber>(i);
    }
    tables_.push_back(std::make_unique<Table>(definition, cold_.of_part(1)));
    return static_cast<TableNumber>(tables_.size() - 1);
  }
  std::uint64_t last_round(TableNumber) const override { return 0; }  // none is left out for its number
  void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows,
            const After&) override {
    tables_.at(table)->pull(keys, rows);
  }
  std::unique_ptr<Pulling> start_pull(TableNumber table, std::span<const std::uint64_t> keys) override {
    class There final : public Pulling {
     public:
      explicit There(std::size_t bytes) : rows(bytes) {}
      std::span<const std::byte> wait() override { return rows; }
      std::vector<std::byte> rows;
    };
    const Table& from = *tables_.at(table);
    const bool wide = is_wide(from.definition().dtype);
    auto pulled =
        std::make_unique<There>(keys.size() * from.width() * (wide ? sizeof(double) : sizeof(float)));
    from.pull(keys, WritableNumbers(pulled->rows, wide));
    return pulled;
  }
  void send(std::span<const PushTo> pushes) override { push(pushes); }
  void settle() override {}
  void push(std::span<const PushTo> pushes) override {
    for (const auto& [table, push, others] : pushes) {
      if (others != nullptr) others->clear();
      const Table& to = *tables_.at(table);
      check(push, to.definition(), to.width());
      SHOAL_CHECK(push.workers <= 1, InvalidInput, "ps: table ", in_quotes(to.definition().name),
                  " is in the process of one worker, and ", push.workers,
                  " push to it together; give them servers");
    }
    for (const PushTo& to : pushes) tables_.at(to.table)->push(to.push);
  }
  void refuse(std::uint64_t, const std::string&) override {}
  void put(TableNumber table, std::span<const std::uint64_t> keys, Numbers values) override {
    tables_.at(table)->put(keys, values);
  }
  void clear(TableNumber table) override { tables_.at(table)->clear(); }
  Shrunk shrink(TableNumber table, std::uint32_t day) override {
    tables_.at(table)->set_day(day);
    return tables_.at(table)->shrink();
  }
  void begin_save(TableNumber table, const std::filesystem::path& path, const Saved& as) override {
    saves_.erase(table);
    saves_[table] = std::make_unique<Saving>(*tables_.at(table), files_, file_of(path, 0), options_of(as));
  }
  Saved last_save(TableNumber table) override { return tables_.at(table)->saved(); }
  std::optional<SaveReport> saved(TableNumber table) override {
    constexpr std::size_t kRows = 1 << 14;
    Saving& saving = *saves_.at(table);
    saving.advance(kRows);
    if (!saving.is_written()) return std::nullopt;
    const auto whole = std::move(saves_.at(table));
    saves_.erase(table);
    return whole->finish();
  }
  SaveReport load(TableNumber table, const std::filesystem::path& path) override {
    return ps::load(*tables_.at(table), files_, files_of(files_, path));
  }
  std::pair<std::uint64_t, std::int64_t> digest(TableNumber table) override {
    return {tables_.at(table)->digest(), tables_.at(table)->num_rows()};
  }

 private:
  const ColdTier cold_;
  DiskFileSystem files_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::map<TableNumber, std::unique_ptr<Saving>> saves_;
};

}  // namespace

std::unique_ptr<Tables> tables_in_process(const ColdOptions& cold) {
  return std::make_unique<InProcess>(cold);
}

}  // namespace shoal::ps
