// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/save.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

#include "shoal/base/error_test.h"
#include "shoal/base/memory_files_test.h"

using namespace shoal;
using namespace shoal::ps;
namespace fs = std::filesystem;

static Definition definition() {
  return {.name = "ids",
          .seed = 5,
          .dtype = DType::BFloat16,
          .shards = 4,
          .parts = {{.width = 3, .optimizer = {.rule = RowRule::Adam}}, {.width = 5, .earned_at = 2}},
          .scored = true,
          .life = {.show_weight = 1, .decay = 0.9f, .min_score = 0.5f, .max_rows = 900}};
}

static void train(Table& table, std::mt19937& random, int pushes) {
  for (int i = 0; i < pushes; ++i) {
    std::vector<std::uint64_t> keys(100);
    for (auto& key : keys) key = random() % 2000;
    std::vector<float> gradients(keys.size() * table.width());
    for (float& gradient : gradients) gradient = static_cast<float>(random() % 100) * 0.01f - 0.5f;
    table.push({.keys = keys, .gradients = gradients, .step = random()});
  }
}

static void load_one(Table& table, MemoryFiles& files, const fs::path& path) {
  load(table, files, std::vector{path});
}

TEST_CASE("a table that was saved and loaded trains on with the same bits") {
  std::mt19937 random(1);
  MemoryFiles files;
  Table table(definition()), other(definition());
  table.set_day(9);
  train(table, random, 30);
  const SaveReport saved = save(table, files, "full", {.origin = 77});
  CHECK(saved.rows == table.num_rows());
  CHECK(load(other, files, std::vector<fs::path>{"full"}) == saved);
  CHECK(other.digest() == table.digest());
  CHECK(other.day() == 9);
  std::mt19937 again = random;
  train(table, random, 5);
  train(other, again, 5);
  CHECK(other.digest() == table.digest());
}

TEST_CASE("a table that decays four thousand million times ends when nothing is left to decay") {
  std::mt19937 random(1);
  Table table(definition());
  train(table, random, 3);
  table.decay(~std::uint32_t{0});
  for (std::uint64_t key = 0; key < 2000; ++key) CHECK(table.usage_of(key).shows < 1e-40f);
}

TEST_CASE("a full save and its deltas are a full save of the end, bit for bit") {
  std::mt19937 random(2);
  MemoryFiles files;
  Table table(definition());
  train(table, random, 20);
  save(table, files, "full", {.origin = 1});
  for (const char* path : {"1", "2", "3"}) {
    train(table, random, 4);
    CHECK(table.shrink().over_bound > 0);
    train(table, random, 1);  // some come back
    const SaveReport report = save(table, files, path, {.kind = SaveKind::Delta});
    CHECK(report.rows < table.num_rows());
    CHECK(report.removed > 0);
  }
  Table by_deltas(definition()), whole(definition());
  for (const char* path : {"full", "1", "2", "3"}) load_one(by_deltas, files, path);
  save(table, files, "end", {.origin = 2});
  load_one(whole, files, "end");
  CHECK(by_deltas.num_rows() == table.num_rows());
  CHECK(by_deltas.digest() == table.digest());
  CHECK(whole.digest() == table.digest());
}

TEST_CASE("a save of three servers loads on one, two and five, with the same rows") {
  std::mt19937 random(3);
  MemoryFiles files;
  Definition of_saved = definition();
  of_saved.life.max_rows = 0;
  Table all(of_saved);
  train(all, random, 40);
  save(all, files, "all", {.origin = 1});
  const auto server = [&](std::uint32_t which, std::uint32_t servers) {
    return [&all, which, servers](std::uint64_t key) { return all.shard_of(key) % servers == which; };
  };
  std::vector<fs::path> parts;
  for (std::uint32_t which = 0; which < 3; ++which) {
    Table part(of_saved);
    load(part, files, std::vector<fs::path>{"all"}, server(which, 3));
    parts.push_back(std::to_string(which));
    save(part, files, parts.back(), {.origin = 2, .part = which, .parts = 3});
  }
  for (const std::uint32_t servers : {1U, 2U, 5U}) {
    std::uint64_t digest = 0;
    std::int64_t rows = 0;
    for (std::uint32_t which = 0; which < servers; ++which) {
      Table part(of_saved);
      load(part, files, parts, server(which, servers));
      digest += part.digest();  // sums over rows
      rows += part.num_rows();
    }
    CHECK(rows == all.num_rows());
    CHECK(digest == all.digest());
  }
  Table part(of_saved);
  CHECK(error_of([&] { load(part, files, std::span(parts).first(2)); }) ==
        "ps: 0: one of 3 files of its save, and 2 were given");
  CHECK(error_of([&] { load(part, files, std::vector<fs::path>{"0", "1", "1"}); }) ==
        "ps: 1: part 1 of its save is there twice");
}

TEST_CASE("a base has the values of rows of that score, and no state") {
  std::mt19937 random(4);
  MemoryFiles files;
  Table table(definition()), served(definition());
  train(table, random, 60);
  const SaveReport full = save(table, files, "full", {.origin = 1});
  const SaveReport base = save(table, files, "base", {.kind = SaveKind::Base, .min_score = 3});
  CHECK(base.rows > 0);
  CHECK(base.rows < full.rows);
  CHECK(base.bytes * full.rows < full.bytes * base.rows);
  load_one(served, files, "base");
  CHECK(served.num_rows() == base.rows);
  for (std::uint64_t key = 0; key < 2000; ++key) {
    if (!table.contains(key)) continue;
    CHECK(served.contains(key) == (table.score(table.usage_of(key)) >= 3));
    std::vector<float> wanted(table.width()), got(table.width());
    table.pull(std::span(&key, 1), wanted);
    served.pull(std::span(&key, 1), got);
    if (served.contains(key)) CHECK(got == wanted);
  }
  CHECK(error_of([&] { save(served, files, "delta", {.kind = SaveKind::Delta}); }) ==
        "ps: table \"ids\": there is no full save that a delta could be one of; save it in full first");
}

TEST_CASE("a delta is taken after the save before it alone, and into a table of its definition") {
  std::mt19937 random(5);
  MemoryFiles files;
  Table table(definition());
  train(table, random, 5);
  save(table, files, "full", {.origin = 11});
  save(table, files, "1", {.kind = SaveKind::Delta});
  save(table, files, "2", {.kind = SaveKind::Delta});
  Table other(definition());
  CHECK(error_of([&] { load_one(other, files, "1"); }) ==
        "ps: 1: a delta of save 11, and the table has none");
  load_one(other, files, "full");
  const std::uint64_t digest = other.digest();
  CHECK(error_of([&] { load_one(other, files, "2"); }) ==
        "ps: 2: delta 2, and the table wants 1; load them in order");
  CHECK(error_of([&] { load_one(other, files, "full"); }) ==
        concat("ps: full: table \"ids\" has ", other.num_rows(), " rows already; load into a new one"));
  CHECK(other.digest() == digest);
  Definition wider = definition();
  wider.parts[1].width = 6;
  Table third(wider);
  CHECK(error_of([&] { load_one(third, files, "full"); }) ==
        "ps: full: saved from another table than \"ids\": parts.1.width is 6, and 5 there");
}

TEST_CASE("a delta that met a full disk loses nothing: the next one has its rows too") {
  std::mt19937 random(7);
  MemoryFiles files;
  Table table(definition()), other(definition());
  train(table, random, 5);
  save(table, files, "full", {.origin = 1});
  train(table, random, 5);
  table.erase(1);
  files.room = 5000;
  CHECK(error_of([&] { save(table, files, "1", {.kind = SaveKind::Delta}); }) == "the disk is full");
  files.room = ~std::size_t{0};
  train(table, random, 1);
  save(table, files, "1", {.kind = SaveKind::Delta});
  load_one(other, files, "full");
  load_one(other, files, "1");
  CHECK(other.digest() == table.digest());
}

TEST_CASE("a thousand damaged bits, and every cut, are found, and change nothing") {
  std::mt19937 random(6);
  MemoryFiles files;
  Table table(definition());
  train(table, random, 2);
  save(table, files, "full", {.origin = 1});
  train(table, random, 1);
  table.erase(random() % 2000);
  save(table, files, "1", {.kind = SaveKind::Delta});
  Table other(definition());
  load_one(other, files, "full");
  const std::uint64_t digest = other.digest();
  const std::string whole = files.contents["1"];
  const auto is_found = [&](const std::string& content) {
    files.contents["bad"] = content;
    const std::string error = error_of([&] { load_one(other, files, "bad"); });
    return !error.empty() && other.digest() == digest;
  };
  for (int i = 0; i < 1000; ++i) {
    std::string damaged = whole;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << (random() % 8));
    REQUIRE(is_found(damaged));
  }
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 1 + random() % 20)
    REQUIRE(is_found(whole.substr(0, bytes)));
  CHECK(is_found(whole + '\0'));
  CHECK_FALSE(is_found(whole));
}
