// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/table.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::ps;

using Keys = std::vector<std::uint64_t>;

static std::vector<float> pulled(const Table& table, const Keys& keys) {
  std::vector<float> rows(keys.size() * table.width());
  table.pull(keys, rows);
  return rows;
}

static void push(Table& table, const Keys& keys, float gradient = 1, float shows = 1, float clicks = 0) {
  const std::vector<float> gradients(keys.size() * table.width(), gradient);
  const std::vector<float> all_shows(keys.size(), shows), all_clicks(keys.size(), clicks);
  table.push({.keys = keys, .gradients = gradients, .shows = all_shows, .clicks = all_clicks});
}

static Keys range(std::uint64_t begin, std::uint64_t end) {
  Keys keys(end - begin);
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

TEST_CASE("a key without a row reads as the row it begins with, and reading makes none") {
  Table table({.name = "ids", .seed = 3, .shards = 8, .parts = {{.width = 5, .initial = {.scale = 0.1f}}}});
  const auto before = pulled(table, range(0, 100));
  CHECK(table.num_rows() == 0);
  push(table, range(0, 100), 0);
  CHECK(table.num_rows() == 100);
  CHECK(pulled(table, range(0, 100)) == before);
  for (const float value : before) CHECK(std::abs(value) <= 0.1f);
}

TEST_CASE("new rows depend on seed, table and key alone") {
  const auto row = [](const char* name, std::uint64_t seed, std::uint64_t key, std::uint32_t shards) {
    const Table table({.name = name, .seed = seed, .shards = shards, .parts = {{.width = 3}}});
    return pulled(table, {key});
  };
  const auto wanted = row("a", 1, 5, 1);
  CHECK(row("a", 1, 5, 64) == wanted);
  CHECK(row("b", 1, 5, 1) != wanted);
  CHECK(row("a", 2, 5, 1) != wanted);
  CHECK(row("a", 1, 6, 1) != wanted);
  CHECK(row("a", 1, 5 + (std::uint64_t{1} << 40), 1) != wanted);
}

TEST_CASE("normal rows have the deviation that was asked for") {
  const Table table(
      {.name = "a", .parts = {{.width = 7, .initial = {.rule = InitialRule::Normal, .scale = 0.5f}}}});
  double sum = 0, squares = 0;
  const auto rows = pulled(table, range(0, 3000));
  for (const float value : rows) {
    sum += value;
    squares += value * value;
  }
  CHECK(std::abs(sum / static_cast<double>(rows.size())) < 0.02);
  CHECK(std::sqrt(squares / static_cast<double>(rows.size())) == doctest::Approx(0.5).epsilon(0.03));
}

TEST_CASE("a gradient that is not finite is refused by its key, and nothing of its push is applied") {
  Table table({.name = "ids", .parts = {{.width = 2}}});
  std::vector<float> gradients = {1, 1, 1, NAN};
  CHECK(error_of([&] { table.push({.keys = Keys{4, 9}, .gradients = gradients}); }) ==
        "ps: table \"ids\": the gradient of key 9 is not finite; nothing was pushed. Is the learning rate "
        "too high?");
  CHECK(table.num_rows() == 0);
  CHECK(error_of([&] { table.push({.keys = Keys{4}, .gradients = gradients}); }) ==
        "ps: table \"ids\": a push of 1 keys has 4 numbers of gradients, wanted 2");
}

TEST_CASE("the wide part is made when its row's score has earned it") {
  Table table(
      {.name = "ids",
       .shards = 2,
       .parts = {{.width = 1, .initial = {.rule = InitialRule::Constant, .scale = 0}},
                 {.width = 4, .initial = {.rule = InitialRule::Constant, .scale = 2}, .earned_at = 3}},
       .scored = true,
       .life = {.show_weight = 1}});
  const std::vector<float> zeros(4, 0.0f);
  const auto wide = [&] {
    const auto row = pulled(table, {7});
    return std::vector<float>(row.begin() + 1, row.end());
  };
  push(table, {7});
  push(table, {7});
  CHECK(wide() == zeros);
  push(table, {7});
  CHECK(wide() == std::vector<float>(4, 2.0f));  // as it begins: this gradient was of the zeros
  push(table, {7});
  CHECK(wide()[0] < 2.0f);
  table.erase(7);
  CHECK(wide() == zeros);
  push(table, {7});
  CHECK(wide() == zeros);
}

TEST_CASE("bfloat16 rows train as float32 ones do, within their precision") {
  const auto trained = [](DType dtype) {
    Table table({.name = "ids", .dtype = dtype, .shards = 2, .parts = {{.width = 3}}});
    const std::vector<float> gradients = {1, -1, 0.5f};
    for (std::uint64_t step = 0; step < 50; ++step)
      table.push({.keys = Keys{1}, .gradients = gradients, .step = step});
    return pulled(table, {1});
  };
  const auto exact = trained(DType::Float32), half = trained(DType::BFloat16);
  for (std::size_t i = 0; i < 3; ++i) CHECK(half[i] == doctest::Approx(exact[i]).epsilon(0.05));
}

TEST_CASE("admission by count makes the row at the push it says, whoever comes between") {
  Table table({.name = "ids",
               .shards = 4,
               .parts = {{.width = 1}},
               .admission = {.rule = AdmissionRule::Count, .threshold = 3, .candidates = 4096}});
  for (int times = 1; times <= 3; ++times) {
    CHECK(table.num_rows() == 0);
    push(table, range(0, 500));
  }
  CHECK(table.num_rows() == 500);
}

TEST_CASE("a rejected key takes at most 4 bytes") {
  Table table({.name = "ids",
               .shards = 4,
               .parts = {{.width = 1}},
               .admission = {.rule = AdmissionRule::Count, .threshold = 2, .candidates = 10'000}});
  push(table, range(0, 10'000));
  CHECK(table.num_rows() <= 1);  // one in 65,000 is taken for another
  CHECK(table.candidate_bytes() <= 4 * 10'000 + 4 * 64);
}

TEST_CASE("admission by probability lets in that share, the same keys on any shards") {
  const auto admitted = [](std::uint32_t shards) {
    Table table({.name = "ids",
                 .shards = shards,
                 .parts = {{.width = 1}},
                 .admission = {.rule = AdmissionRule::Probability, .threshold = 0.25f}});
    push(table, range(0, 4000));
    Keys keys;
    for (const std::uint64_t key : range(0, 4000))
      if (table.contains(key)) keys.push_back(key);
    return keys;
  };
  CHECK(admitted(1) == admitted(64));
  CHECK(static_cast<double>(admitted(1).size()) == doctest::Approx(1000).epsilon(0.1));
}

TEST_CASE("admission by score adds up shows and clicks") {
  Table table({.name = "ids",
               .parts = {{.width = 1}},
               .admission = {.rule = AdmissionRule::Score, .threshold = 1},
               .scored = true,
               .life = {.show_weight = 0.25f}});
  for (int i = 0; i < 3; ++i) push(table, {1});
  CHECK_FALSE(table.contains(1));
  push(table, {1});
  CHECK(table.contains(1));
  push(table, {2}, 1, 1, 1);
  CHECK(table.contains(2));
}

TEST_CASE("a bound on rows keeps those of the highest score, and a bound on bytes is one on rows") {
  Definition definition = {.name = "ids",
                           .shards = 4,
                           .parts = {{.width = 2}},
                           .scored = true,
                           .life = {.show_weight = 1, .max_rows = 30}};
  const auto kept = [](const Definition& wanted) {
    Table table(wanted);
    for (std::uint64_t key = 0; key < 100; ++key) push(table, {key}, 0, static_cast<float>(key));
    CHECK(table.shrink().over_bound == 70);
    Keys keys;
    for (const std::uint64_t key : range(0, 100))
      if (table.contains(key)) keys.push_back(key);
    return keys;
  };
  CHECK(kept(definition) == range(70, 100));
  definition.life.max_rows = 0;
  definition.life.max_bytes = static_cast<std::uint64_t>(30 * Table(definition).bytes_a_row());
  CHECK(kept(definition) == range(70, 100));
}

TEST_CASE("equal scores do not break a bound") {
  Table table({.name = "ids", .parts = {{.width = 1}}, .scored = true, .life = {.max_rows = 777}});
  push(table, range(0, 3000), 0);
  table.shrink();
  CHECK(table.num_rows() == 777);
}

TEST_CASE("threads with shards of their own push at the same time") {
  const auto trained = [](bool at_once) {
    auto table = std::make_unique<Table>(
        Definition{.name = "ids", .shards = 8, .parts = {{.width = 4}}, .scored = true});
    std::vector<Keys> of_thread(2);
    for (const std::uint64_t key : range(0, 4000)) of_thread[table->shard_of(key) % 2].push_back(key);
    const auto work = [&](const Keys& keys) {
      for (int i = 0; i < 5; ++i) {
        push(*table, keys, static_cast<float>(i));
        pulled(*table, keys);
      }
    };
    if (at_once) {
      std::thread other([&] { work(of_thread[0]); });
      work(of_thread[1]);
      other.join();
    } else {
      work(of_thread[0]);
      work(of_thread[1]);
    }
    return table->digest();
  };
  CHECK(trained(true) == trained(false));
}
