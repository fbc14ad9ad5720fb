// SPDX-License-Identifier: Apache-2.0
// Rows in tables beside checkpoints.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <string>

#include "shoal/base/error_test.h"
#include "shoal/base/file_system.h"
#include "shoal/base/temporary_folder_test.h"
#include "shoal/checkpoint/folder.h"
#include "shoal/ps/forwarding_test.h"
#include "shoal/train/trainer.h"
#include "shoal/train/two_tables_test.h"

namespace saved_rows_test {

using namespace shoal;
using namespace shoal::two_tables;

TEST_CASE("a checkpoint has the rows of tables, and one goes on as if nothing had been between") {
  const TemporaryFolder temporary;
  const std::filesystem::path& folder = temporary.path();
  const TrainerOptions options = {.tables = kBoth};
  const Optimizer optimizer = Adagrad{.lr = 0.1};
  double wanted = 0;
  TrainingState state;
  {
    auto model = model_of();
    Trainer trainer(model, loss_of, optimizer, options);
    trainer.step(batch_of(0, 0, 14));
    trainer.step(batch_of(1, 0, 14));
    trainer.save(folder, "note");
    CHECK(trainer.load(folder) == "note");  // while it is being written
    state = trainer.state();
    trainer.step(batch_of(2, 0, 14));
    wanted = trainer.step(batch_of(3, 0, 14)).loss;
  }
  auto model = model_of(9);
  Trainer trainer(model, loss_of, optimizer, options);
  const auto is_refused = [&] {
    return contains(error_of([&] { trainer.restore(state); }), "Remedy: load_rows() of step 2 before it");
  };
  CHECK(is_refused());
  trainer.step(batch_of(7, 0, 14));
  CHECK(trainer.load(folder) == "note");
  trainer.step(batch_of(7, 0, 14));
  CHECK(is_refused());  // rows went on since
  trainer.load(folder);
  trainer.step(batch_of(2, 0, 14));
  CHECK(trainer.step(batch_of(3, 0, 14)).loss == wanted);
}

static std::string rows_before(const std::filesystem::path& folder, std::int64_t step) {
  DiskFileSystem files;
  return ps::followed_by(files, folder / "rows" / checkpoint::name_of_step(step)).value_or("");
}

TEST_CASE("checkpoints have the rows that changed since the one before, and any of them is loaded") {
  const TemporaryFolder temporary;
  const std::filesystem::path& folder = temporary.path();
  TrainerOptions options = {.tables = kBoth};
  options.tables.save_deltas = 2;
  const Optimizer optimizer = Adagrad{.lr = 0.1};
  auto model = model_of();
  Trainer trainer(model, loss_of, optimizer, options);
  const auto go_on = [&](std::int64_t from, std::int64_t to, std::int64_t keep = 0) {
    for (std::int64_t number = from; number < to; ++number) {
      trainer.step(batch_of(number, 0, 14));
      trainer.save(folder, "", keep);
      trainer.wait_for_saves();
    }
    return rows_of(trainer, *model);
  };
  const auto is_loaded = [&](std::int64_t step, const Rows& wanted) {
    auto other = model_of(9);
    Trainer loads(other, loss_of, optimizer, {.tables = kBoth});
    loads.load(folder, {.step = step});
    const Rows rows = rows_of(loads, *other);
    return std::ranges::all_of(wanted, [&](const auto& row) { return rows.at(row.first).equal(row.second); });
  };
  const Rows fourth = go_on(0, 4), fifth = go_on(4, 5);
  CHECK(rows_before(folder, 1) == "");
  CHECK(rows_before(folder, 2) == "step_00000001");
  CHECK(rows_before(folder, 3) == "step_00000002");
  CHECK(rows_before(folder, 4) == "");
  CHECK(is_loaded(5, fifth));
  CHECK(is_loaded(4, fourth));
  const Rows sixth = go_on(5, 6, 2);
  go_on(6, 7, 2);  // the others go, but for rows that those want which are kept
  const auto has = [&](std::int64_t step) {
    return std::filesystem::exists(folder / "rows" / checkpoint::name_of_step(step));
  };
  CHECK((!has(1) && !has(2) && !has(3) && has(4) && has(5) && has(6) && has(7)));
  CHECK(!std::filesystem::exists(folder / "step_00000005"));
  CHECK(is_loaded(6, sixth));
  trainer.load(folder, {.step = 6});
  CHECK(is_loaded(8, go_on(16, 18)));  // a run that goes on begins with all rows
  CHECK(rows_before(folder, 7) == "");
  CHECK(rows_before(folder, 8) == "step_00000007");
  trainer.load(folder, {.step = 6});
  CHECK(is_loaded(7, go_on(26, 27)));
  CHECK(!std::filesystem::exists(folder / "step_00000008"));  // of rows at step 7 that are no more
  std::filesystem::remove_all(folder / "rows" / "step_00000005");
  CHECK(contains(error_of([&] { is_loaded(6, sixth); }), "rows/step_00000005"));
}

namespace {

// Tables that say of pushes too late that they were refused, and of which saves never end, or fail.
class Refusing final : public ps::test::Forwarding {
 public:
  using Forwarding::Forwarding;
  void settle() override { SHOAL_CHECK(!refuses_pushes, InvalidInput, "a push was refused"); }
  std::optional<ps::SaveReport> saved(TableNumber) override {
    SHOAL_CHECK(!fails_saves, Infeasible, "the disk is full");
    return std::nullopt;
  }
  void begin_save(TableNumber table, const std::filesystem::path& path, const ps::Saved& as) override {
    SHOAL_CHECK(!refuses_saves, InvalidInput, "save it in full");
    Forwarding::begin_save(table, path, as);
  }
  bool refuses_pushes = false, fails_saves = false, refuses_saves = false;
};

}  // namespace

TEST_CASE(
    "a push that is refused while rows are saved is an error of the step, and a save that fails is its own") {
  const TemporaryFolder folder;
  Refusing tables(ps::tables_in_process());
  TableOptions options = kBoth;
  options.tables = &tables;
  options.exchange.mode = ps::Mode::Async;
  auto model = model_of();
  Trainer trainer(model, loss_of, Adagrad{.lr = 0.1}, {.tables = options});
  trainer.step(batch_of(0, 0, 14));
  std::future<std::string> rows = trainer.begin_saving_rows(folder.path());
  CHECK(rows.valid());
  trainer.step(batch_of(1, 0, 14));
  tables.refuses_pushes = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{10};
  std::string error;
  while (error.empty() && std::chrono::steady_clock::now() < end)
    error = error_of([&] { trainer.step(batch_of(2, 0, 14)); });
  CHECK(error == "a push was refused");
  tables.refuses_pushes = false;
  tables.fails_saves = true;
  trainer.finish_saving_rows();
  CHECK(rows.get() == "the disk is full");
  trainer.step(batch_of(3, 0, 14));
  trainer.save(folder.path());
  CHECK(contains(error_of([&] { trainer.wait_for_saves(); }), " was not saved: the disk is full"));
  tables.refuses_saves = true;
  trainer.step(batch_of(4, 0, 14));
  trainer.save(folder.path());
  CHECK(contains(error_of([&] { trainer.wait_for_saves(); }), " was not saved: save it in full"));
}

}  // namespace saved_rows_test
