// SPDX-License-Identifier: Apache-2.0
// Saves that go on while their table changes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/base/memory_files_test.h"
#include "shoal/base/temporary_folder_test.h"
#include "shoal/base/text.h"
#include "shoal/ps/client.h"
#include "shoal/ps/moves.h"
#include "shoal/ps/save.h"
#include "shoal/ps/servers_test.h"

using namespace shoal;
using namespace shoal::ps;
namespace fs = std::filesystem;

static Definition definition(std::uint32_t seed) {
  return {.name = "ids",
          .seed = seed,
          .dtype = seed % 2 == 0 ? DType::BFloat16 : DType::Float32,
          .shards = 4,
          .parts = {{.width = 3, .optimizer = {.rule = RowRule::Adam}}, {.width = 5, .earned_at = 2}},
          .scored = true,
          .life = {.show_weight = 1, .decay = 0.9f, .min_score = 0.4f}};
}

static void push(Table& table, std::mt19937& random) {
  std::vector<std::uint64_t> keys(1 + random() % 200);
  for (auto& key : keys) key = random() % 3 == 0 ? random() % 6000 : random() % 300;
  std::vector<float> gradients(keys.size() * table.width());
  for (float& gradient : gradients) gradient = static_cast<float>(random() % 100) * 0.01f - 0.5f;
  table.push({.keys = keys, .gradients = gradients, .step = random()});
}

// Whatever may befall rows, expiry seldom.
static void change(Table& table, std::mt19937& random) {
  const std::uint64_t key = random() % 3000;
  switch (random() % 30) {
    case 0: table.shrink(); break;
    case 1:
    case 2:
    case 3: table.erase(key); break;
    case 4:
    case 5:
    case 6:
    case 7: {
      const std::vector<float> values(table.width(), 0.5f);
      table.put(std::span(&key, 1), values);
      break;
    }
    default: push(table, random);
  }
}

// A table to be saved, most of whose rows are on disk for every third seed, and one to load into.
struct Tested {
  explicit Tested(std::uint32_t seed) : random(seed), loaded(definition(seed)) {
    if (seed % 3 == 2) {
      disk = open_rocksdb(folder.path() / "rows");
      constexpr std::int64_t kDisk = ColdDisk::kLeastMemory;
      const std::int64_t rows = std::int64_t{192} * 4 * (Table(definition(seed)).bytes_a_row() + 33);
      table.emplace(definition(seed), Cold{.store = disk->store(kDisk), .memory_bytes = kDisk + rows});
    } else {
      table.emplace(definition(seed));
    }
  }
  void change_often(int times) {
    for (int i = 0; i < times; ++i) change(*table, random);
  }
  void load_from(const std::string& path) { load(loaded, files, std::vector<fs::path>{path}); }

  std::mt19937 random;
  MemoryFiles files;
  TemporaryFolder folder;
  std::unique_ptr<ColdDisk> disk;
  std::optional<Table> table;
  Table loaded;
};

TEST_CASE(
    "a save has the rows of the moment when it began, whatever happens to them, and so have its deltas") {
  std::int64_t on_disk = 0, removed = 0, in_deltas = 0;
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    Tested tested(seed);
    Table& table = *tested.table;
    tested.change_often(60);
    for (std::uint32_t number = 0; number < 4; ++number) {
      CAPTURE(number);
      const std::string path = std::to_string(number);
      const std::uint64_t digest = table.digest();
      const std::int64_t rows = table.num_rows();
      on_disk += table.num_cold_rows();
      Saving saving(
          table, tested.files, path,
          {.kind = number == 0 ? SaveKind::Full : SaveKind::Delta, .origin = number == 0 ? 9U : 0U});
      while (!saving.advance(1 + tested.random() % 60))
        tested.change_often(static_cast<int>(tested.random() % 4));
      tested.change_often(1);
      const SaveReport report = saving.finish();
      if (number == 0) CHECK(report.rows == rows);
      if (number > 0) in_deltas += report.rows < rows ? 1 : 0;
      removed += report.removed;
      tested.load_from(path);
      REQUIRE(tested.loaded.num_rows() == rows);
      REQUIRE(tested.loaded.digest() == digest);
      tested.change_often(6);
    }
  }
  CHECK(on_disk > 10000);
  CHECK(removed > 100);
  CHECK(in_deltas > 20);
}

TEST_CASE("a save that fails or is given up while rows change loses nothing of the next delta") {
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    Tested tested(seed);
    Table& table = *tested.table;
    tested.change_often(40);
    save(table, tested.files, "full", {.origin = 9});
    tested.load_from("full");
    tested.change_often(20);
    {
      if (seed % 2 == 0) tested.files.room = 3000;
      Saving saving(table, tested.files, "1", {.kind = SaveKind::Delta});
      for (int i = 0; i < 5; ++i) {
        saving.advance(50);
        tested.change_often(1);
      }
      if (seed % 2 == 0) CHECK(error_of([&] { saving.finish(); }) == "the disk is full");
    }
    tested.files.room = ~std::size_t{0};
    tested.change_often(5);
    save(table, tested.files, "1", {.kind = SaveKind::Delta});
    tested.load_from("1");
    REQUIRE(tested.loaded.digest() == table.digest());
  }
}

TEST_CASE("servers save while a worker trains, in slices, and what is saved is that of one moment") {
  const TemporaryFolder folder;
  test::CopyingServers servers(2, 2);
  Client client = servers.client(), other = servers.client();
  const auto table = client.create(definition(1));
  std::mt19937 random(1);
  std::vector<std::uint64_t> keys;
  std::vector<float> gradients;
  const auto train = [&](std::size_t count) {
    keys.resize(count);
    for (auto& key : keys) key = random() % 100000;
    std::ranges::sort(keys);
    keys.erase(std::ranges::unique(keys).begin(), keys.end());
    gradients.assign(keys.size() * 8, 0.25f);
    client.push(table, {.keys = keys, .gradients = gradients});
  };
  for (int i = 0; i < 20; ++i) train(10000);
  const auto wanted = client.digest(table);
  client.begin_save(table, folder.path() / "ids", {.origin = 5});
  CHECK(contains(error_of([&] {
                   other.begin_save(other.create(definition(1)), folder.path() / "others", {.origin = 6});
                 }),
                 "ps: table \"ids\" is being saved to "));
  int pushes = 0;
  for (; !client.saved(table); ++pushes) train(100);
  CHECK(pushes > 3);
  CHECK(client.saved(table)->rows == wanted.second);  // as often as it is asked
  CHECK(client.digest(table) != wanted);
  DiskFileSystem files;
  Table loaded(definition(1));
  load(loaded, files, files_of(files, folder.path() / "ids"));
  CHECK(std::pair(loaded.digest(), loaded.num_rows()) == wanted);
}

TEST_CASE("of a server that goes while it saves, the save is given up by name, and another one is whole") {
  const TemporaryFolder folder;
  test::CopyingServers servers(2, 1);
  Client client = servers.client();
  const auto table = client.create(definition(1));
  std::vector<std::uint64_t> keys(50000);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<float> gradients(8 * keys.size(), 0.5f);
  client.push(table, {.keys = keys, .gradients = gradients});
  client.begin_save(table, folder.path() / "ids", {.origin = 5});
  servers.end(0);
  const std::string error = error_of([&] {
    while (!client.saved(table)) std::this_thread::yield();
  });
  CHECK(error ==
        "ps: table \"ids\": its save was given up, as the server that made it has gone; the saves before are "
        "as they were");
  const auto ends = [&] {  // what the others have begun
    return error_of([&] { client.begin_save(table, folder.path() / "ids", {.origin = 6}); }).empty();
  };
  while (!ends()) std::this_thread::yield();
  for (auto report = client.saved(table);; report = client.saved(table)) {
    if (!report) continue;
    CHECK(report->rows == 50000);
    break;
  }
}

static SaveReport wait_for_save(Client& client, Client::TableNumber table) {
  for (;;)
    if (const auto report = client.saved(table)) return *report;
}

TEST_CASE("servers save deltas, also those that were copies, and a new copy knows that it cannot") {
  const TemporaryFolder folder;
  test::CopyingServers servers(2, 1);
  Client client = servers.client();
  const auto table = client.create(definition(1));
  std::mt19937 random(1);
  const auto train = [&] {
    std::vector<std::uint64_t> keys(500);
    for (auto& key : keys) key = random() % 20000;
    std::ranges::sort(keys);
    keys.erase(std::ranges::unique(keys).begin(), keys.end());
    const std::vector<float> gradients(keys.size() * 8, 0.25f);
    client.push(table, {.keys = keys, .gradients = gradients});
  };
  const auto save = [&](std::uint32_t number) {
    client.begin_save(table, folder.path() / std::to_string(number), {.origin = 5, .number = number});
    return wait_for_save(client, table);
  };
  for (int i = 0; i < 40; ++i) train();
  CHECK(client.last_save(table) == Saved());
  CHECK(error_of([&] { save(1); }).find("there is no full save that a delta could be one of") !=
        std::string::npos);
  const std::int64_t all = save(0).rows;
  CHECK(client.last_save(table) == Saved{.origin = 5, .number = 0});
  train();
  CHECK(save(1).rows < all / 10);
  CHECK(error_of([&] { save(3); }) ==
        "ps: table \"ids\": delta 3 of save 5 is asked for, and it is as of delta 1 of save 5; save it in "
        "full");
  train();
  servers.end(0);  // its copies have its parts, and know what changed
  train();
  CHECK(client.last_save(table) == Saved{.origin = 5, .number = 1});
  const SaveReport second = save(2);
  CHECK(second.rows > 500);
  CHECK(second.rows < all / 10);
  const auto wanted = client.digest(table);
  DiskFileSystem files;
  Table loaded(definition(1));
  for (const int number : {0, 1, 2})
    load(loaded, files, files_of(files, folder.path() / std::to_string(number)));
  CHECK(std::pair(loaded.digest(), loaded.num_rows()) == wanted);
  CHECK(loaded.saved() == Saved{.origin = 5, .number = 2});
  servers.come_again(0, 1);
  while (servers.num_without_copy() > 0 || num_moves(servers.maps.find()) > 0) std::this_thread::yield();
  train();
  CHECK(client.last_save(table) ==
        Saved());  // it leads again, and does not know what changed before it had the rows
  CHECK(error_of([&] { save(3); }).find("there is no full save") != std::string::npos);
}
