// SPDX-License-Identifier: Apache-2.0
// Tables larger than their memory, against tables that are not.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include "shoal/base/error_test.h"
#include "shoal/base/file_system.h"
#include "shoal/base/temporary_folder_test.h"
#include "shoal/ps/save.h"
#include "shoal/ps/table.h"

using namespace shoal;
using namespace shoal::ps;
namespace fs = std::filesystem;

namespace {

struct Seen {
  std::map<std::uint64_t, std::string> records;
  std::size_t writes = 0, removed = 0;
  bool is_full = false;
};

// In memory, for all to see, and full on demand.
class MapStore final : public ColdStore {
 public:
  explicit MapStore(Seen& seen) : seen_(seen) {}
  void read(std::span<const std::uint64_t> hashes, const Visit& visit) override {
    CHECK(std::ranges::is_sorted(hashes));
    for (std::size_t i = 0; i < hashes.size(); ++i)
      if (const auto found = seen_.records.find(hashes[i]); found != seen_.records.end())
        visit(i, found->second);
  }
  void read_range(std::uint64_t first, std::uint64_t last, const Visit& visit) override {
    for (auto at = seen_.records.lower_bound(first); at != seen_.records.end() && at->first <= last; ++at)
      visit(0, at->second);
  }
  void write(const Changes& changes) override {
    SHOAL_CHECK(!seen_.is_full, Infeasible, "the disk is full");
    ++seen_.writes;
    seen_.removed += changes.removed.size();
    for (const auto& [hash, record] : changes.written) seen_.records[hash] = record;
    for (const std::uint64_t hash : changes.removed) seen_.records.erase(hash);
  }
  std::int64_t memory_bytes() const override { return 0; }

 private:
  Seen& seen_;
};

// Random pushes, of keys of which few come often.
struct Traffic {
  std::vector<std::uint64_t> keys;
  std::vector<float> gradients, shows, clicks;
  Push push(std::uint64_t step) const {
    return {.keys = keys, .gradients = gradients, .shows = shows, .clicks = clicks, .step = step};
  }
};

}  // namespace

static Traffic drawn(std::mt19937& random, std::size_t count, std::uint64_t ids, std::size_t width) {
  Traffic traffic;
  for (std::size_t i = 0; i < count; ++i) {
    traffic.keys.push_back(random() % 3 == 0 ? random() % ids : random() % (ids / 20 + 1));
    traffic.shows.push_back(static_cast<float>(random() % 4));
    traffic.clicks.push_back(static_cast<float>(random() % 2));
    for (std::size_t j = 0; j < width; ++j)
      traffic.gradients.push_back(static_cast<float>(random() % 1000) * 0.002f - 1);
  }
  return traffic;
}

static Definition definition_for(std::uint32_t seed) {
  Definition definition = {
      .name = "ids",
      .seed = seed,
      .dtype = seed % 3 == 2 ? DType::BFloat16 : DType::Float32,
      .shards = 1U << (seed % 4),
      .parts = {{.width = 1 + seed % 5}},
      .admission = {.rule = AdmissionRule::Count,
                    .threshold = static_cast<float>(1 + seed % 2),
                    .candidates = 1 << 14},
      .scored = true,
      .life = {.decay = 0.75f, .min_score = 0.02f, .max_unseen_days = 6, .max_rows = 4000}};
  if (seed % 2 == 1) definition.parts.push_back({.width = 3, .earned_at = 2});
  return definition;
}

// What is the least that a table of this definition may be given, and a little.
static std::int64_t least_memory(const Definition& definition) {
  return 128 * static_cast<std::int64_t>(definition.shards) * (Table(definition).bytes_a_row() + 1 + 24 + 8) +
         (definition.admission.rule == AdmissionRule::Always
              ? 0
              : 4 * static_cast<std::int64_t>(definition.admission.candidates));
}

static void check_equal(Table& cold, Table& warm, std::uint64_t ids) {
  REQUIRE(cold.num_rows() == warm.num_rows());
  REQUIRE(cold.digest() == warm.digest());
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 0; key < ids; key += 3) keys.insert(keys.end(), {key, ids - key, key});
  std::vector<float> a(keys.size() * warm.width()), b(a.size());
  cold.pull(keys, a);
  warm.pull(keys, b);
  REQUIRE(a == b);
  for (std::uint64_t key = 0; key < ids; key += 97) {
    CHECK(cold.contains(key) == warm.contains(key));
    CHECK(cold.usage_of(key) == warm.usage_of(key));
  }
}

TEST_CASE("a table that is mostly on disk holds, bit for bit, what one in memory does") {
  constexpr std::uint64_t kIds = 6000;
  std::int64_t most_cold = 0, expired = 0;
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Definition definition = definition_for(seed);
    const TemporaryFolder folder;
    Seen seen;
    constexpr std::int64_t kDisk = 8 << 20;
    const bool on_disk = seed < 4;
    const std::int64_t memory = least_memory(definition) + (on_disk ? kDisk : 0);
    Table warm(definition);
    const auto disk = on_disk ? open_rocksdb(folder.path() / "rows") : nullptr;
    Table cold(definition, {.store = on_disk ? disk->store(kDisk) : std::make_unique<MapStore>(seen),
                            .memory_bytes = memory});
    for (std::uint32_t round = 0; round < 24; ++round) {
      const Traffic traffic = drawn(random, random() % 1500, kIds, warm.width());
      warm.push(traffic.push(round));
      cold.push(traffic.push(round));
      REQUIRE(cold.memory_bytes() <= memory);
      most_cold = std::max(most_cold, cold.num_cold_rows());
      if (random() % 3 == 0) {
        warm.set_day(warm.day() + 1);
        cold.set_day(cold.day() + 1);
      }
      if (random() % 5 == 0) {
        const Shrunk shrunk = warm.shrink();
        CHECK(cold.shrink() == shrunk);
        expired += shrunk.low_score + shrunk.unseen + shrunk.over_bound;
      }
      if (random() % 4 == 0) {
        const std::uint64_t key = random() % kIds;
        CHECK(cold.erase(key) == warm.erase(key));
      }
    }
    check_equal(cold, warm, kIds);
  }
  CHECK(most_cold > 1000);
  CHECK(expired > 1000);
}

TEST_CASE("saves and deltas of a table on disk are those of one in memory") {
  constexpr std::uint64_t kIds = 3000;
  const TemporaryFolder folder;
  DiskFileSystem files;
  std::mt19937 random(5);
  Definition definition = definition_for(1);
  definition.admission = {};
  const auto made = [&](Seen& seen) {
    return Table(definition,
                 {.store = std::make_unique<MapStore>(seen), .memory_bytes = least_memory(definition)});
  };
  Seen seen, others;
  Table warm(definition), cold = made(seen), loaded = made(others);
  for (std::uint32_t number = 0; number < 4; ++number) {
    for (std::uint32_t step = 0; step < 3; ++step) {
      const Traffic traffic = drawn(random, 300 + 1200 * (number == 0), kIds, warm.width());
      warm.push(traffic.push(step));
      cold.push(traffic.push(step));
    }
    if (number == 2) CHECK(cold.shrink() == warm.shrink());
    const SaveOptions options = {.kind = number == 0 ? SaveKind::Full : SaveKind::Delta,
                                 .origin = number == 0 ? 7u : 0u};
    const std::vector<fs::path> paths = {folder.path() / std::to_string(number)};
    const SaveReport of_warm = save(warm, files, folder.path() / "warm", options);
    const SaveReport of_cold = save(cold, files, paths[0], options);
    CHECK(of_cold.rows == of_warm.rows);
    CHECK(of_cold.removed == of_warm.removed);
    if (number > 0) CHECK(of_cold.rows < warm.num_rows());
    load(loaded, files, paths);
    CHECK(loaded.memory_bytes() <= least_memory(definition));
    check_equal(loaded, warm, kIds);
  }
  CHECK(loaded.num_cold_rows() > 100);
}

TEST_CASE("a push asks the disk twice at most, and what it brings back stays on disk") {
  Seen seen;
  Definition definition = definition_for(3);
  definition.admission = {};
  Table table(definition,
              {.store = std::make_unique<MapStore>(seen), .memory_bytes = least_memory(definition)});
  std::mt19937 random(1);
  for (std::uint32_t step = 0; step < 20; ++step) {
    const std::size_t before = seen.writes;
    const std::size_t records = seen.records.size();
    table.push(drawn(random, 200, 5000, table.width()).push(step));
    CHECK(seen.writes <= before + 1);
    CHECK(seen.records.size() >= records);
  }
  CHECK(seen.removed == 0);
  CHECK(static_cast<std::int64_t>(seen.records.size()) > table.num_cold_rows());  // old ones lie there too
}

TEST_CASE("keys of one shard alone go through too, however many a push has") {
  Definition definition = definition_for(0);
  definition.shards = 8;
  definition.life.max_rows = 0;
  Table warm(definition);
  Seen seen;
  Table cold(definition,
             {.store = std::make_unique<MapStore>(seen), .memory_bytes = least_memory(definition)});
  Traffic traffic;
  for (std::uint64_t key = 0; traffic.keys.size() < 2000; ++key)
    if (warm.shard_of(key) == 3) traffic.keys.push_back(key);
  traffic.shows.assign(traffic.keys.size(), 1);
  traffic.clicks.assign(traffic.keys.size(), 0);
  traffic.gradients.assign(traffic.keys.size() * warm.width(), 0.5f);
  for (std::uint32_t step = 0; step < 3; ++step) {
    warm.push(traffic.push(step));
    cold.push(traffic.push(step));
  }
  CHECK(cold.num_cold_rows() >= 2000 - 128);
  CHECK(cold.num_cold_rows() < 2000);
  CHECK(cold.memory_bytes() <= least_memory(definition));
  check_equal(cold, warm, 5000);
}

TEST_CASE("rows that are pushed often stay in memory") {
  Definition definition = definition_for(0);
  definition.scored = false;
  definition.life = {};
  Seen seen;
  Table table(definition,
              {.store = std::make_unique<MapStore>(seen), .memory_bytes = least_memory(definition)});
  std::mt19937 random(3);
  std::vector<std::uint64_t> often(40), seldom(60);
  std::uint64_t next = 1000;
  for (std::size_t i = 0; i < often.size(); ++i) often[i] = i;
  for (std::uint32_t step = 0; step < 50; ++step) {
    for (std::uint64_t& key : seldom) key = next++;
    for (const auto& keys : {often, seldom}) {
      const std::vector<float> gradients(keys.size() * table.width(), 0.1f);
      table.push({.keys = keys, .gradients = gradients, .step = step});
    }
  }
  CHECK(seen.records.size() > 2000);
  for (const std::uint64_t key : often) CHECK(!seen.records.contains(mixed(key)));
}

TEST_CASE("a full disk is an error that leaves the table as it was") {
  Seen seen;
  Definition definition = definition_for(0);
  Table table(definition,
              {.store = std::make_unique<MapStore>(seen), .memory_bytes = least_memory(definition)});
  Table warm(definition);
  std::mt19937 random(1);
  const auto push = [&](std::size_t keys) {
    const Traffic traffic = drawn(random, keys, 4000, table.width());
    table.push(traffic.push(0));
    warm.push(traffic.push(0));
  };
  for (int i = 0; i < 20; ++i) push(60);
  seen.is_full = true;
  CHECK(error_of([&] { push(60); }) == "the disk is full");
  check_equal(table, warm, 4000);
  seen.is_full = false;
  for (int i = 0; i < 5; ++i) push(60);
  check_equal(table, warm, 4000);
  // In the middle of a push some keys have it and some do not.
  seen.is_full = true;
  const Traffic large = drawn(random, 4000, 4000, table.width());
  Traffic begins_well = large;
  begins_well.keys[0] = 0;
  std::fill_n(begins_well.keys.begin(), 64, table.contains(1) ? 1 : 0);
  const std::string error = error_of([&] { table.push(begins_well.push(0)); });
  CHECK(error == "the disk is full");
  seen.is_full = false;
  CHECK(error_of([&] {
          table.push(large.push(0));
        }).find("keys of a push, and is not to be used: begin again from its last save. the disk is full") !=
        std::string::npos);
  CHECK_THROWS_AS(table.digest(), Error);
}

TEST_CASE("a damaged row on disk is found") {
  Seen seen;
  const Definition definition = definition_for(0);
  Table table(definition,
              {.store = std::make_unique<MapStore>(seen), .memory_bytes = least_memory(definition)});
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) table.push(drawn(random, 60, 4000, table.width()).push(0));
  for (auto& [hash, record] : seen.records) record.pop_back();
  CHECK(error_of([&] { table.digest(); }).find("bytes, which are not those that were written") !=
        std::string::npos);
}

TEST_CASE("memory that is too small, and folders of something else, are refused") {
  const Definition definition = {.name = "users", .parts = {{.width = 16}}};
  Seen seen;
  CHECK(
      error_of(
          [&] { Table(definition, {.store = std::make_unique<MapStore>(seen), .memory_bytes = 1 << 20}); }) ==
      R"(ps: table "users": 1.0MiB of memory are less than the 19.6MiB that 128 rows for each of its shards and )"
      "the disk's cache take; give it more, or fewer shards");
  const TemporaryFolder folder;
  CHECK(error_of([&] { open_rocksdb(folder.path() / "rows")->store(1000); }) ==
        "ps: RocksDB in " + (folder.path() / "rows").string() +
            " got 1000B of memory; it wants 8.0MiB or more");
  std::ofstream(folder.path() / "thesis.txt") << "mine";
  CHECK(error_of([&] { open_rocksdb(folder.path()); }) ==
        "ps: " + folder.path().string() +
            " is for cold rows and is emptied, but holds thesis.txt, which is none; name another folder");
  CHECK(fs::exists(folder.path() / "thesis.txt"));
}
