// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/index.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

using namespace shoal::ps;

static std::uint32_t found(const Index& index, std::uint64_t key) {
  return index.find(index.home(mixed(key)), key);
}

TEST_CASE("an index finds what a map finds, after any inserts and erasures") {
  std::mt19937_64 random(1);
  Index index;
  std::map<std::uint64_t, std::uint32_t> model;
  for (int i = 0; i < 60'000; ++i) {
    const bool grows = (i / 10'000) % 2 == 0;
    const std::uint64_t key = random() % 5000;
    if ((random() % 4 != 0) == grows) {
      if (model.emplace(key, i).second) index.insert(key, static_cast<std::uint32_t>(i));
    } else {
      const auto there = model.find(key);
      CHECK(index.erase(key) == (there == model.end() ? Index::kAbsent : there->second));
      if (there != model.end()) model.erase(there);
    }
    if (i % 5000 == 0) index.fit();
  }
  REQUIRE(index.num_keys() == model.size());
  for (std::uint64_t key = 0; key < 5000; ++key) {
    const auto there = model.find(key);
    CHECK(found(index, key) == (there == model.end() ? Index::kAbsent : there->second));
  }
  index.for_each([&](std::uint64_t key, std::uint32_t slot, bool) { CHECK(model.at(key) == slot); });
}

TEST_CASE("an index takes at most 24 bytes a key while it grows, and after it shrank") {
  Index index;
  double most = 0;
  for (std::uint64_t key = 0; key < 50'000; ++key) {
    index.insert(key, 0);
    if (key >= 1000) most = std::max(most, static_cast<double>(index.bytes()) / static_cast<double>(key + 1));
  }
  CHECK(most <= 22.5);
  for (std::uint64_t key = 0; key < 40'000; ++key) index.erase(key);
  index.fit();
  CHECK(static_cast<double>(index.bytes()) / static_cast<double>(index.num_keys()) <= 24);
}

TEST_CASE("keys whose buckets are full are found behind them, and leave nothing there") {
  std::vector<std::uint64_t> crowd;  // of one bucket, as long as there are fewer than 2^20
  for (std::uint64_t key = 0; crowd.size() < 40; ++key)
    if ((mixed(key) & 0xffffffff) < (std::uint64_t{1} << 20)) crowd.push_back(key);
  Index index;
  for (const std::uint64_t key : crowd) index.insert(key, static_cast<std::uint32_t>(key));
  for (const std::uint64_t key : crowd) CHECK(found(index, key) == static_cast<std::uint32_t>(key));
  for (const std::uint64_t key : crowd) CHECK(index.erase(key) == static_cast<std::uint32_t>(key));
  for (const std::uint64_t key : crowd) CHECK(found(index, key) == Index::kAbsent);
  CHECK(index.num_keys() == 0);
}

TEST_CASE("keys that come and go at a full index leave it as a new one") {
  std::mt19937_64 random(1);
  for (std::size_t size : {4, 30, 128, 1000}) {
    Index index;
    std::vector<std::uint64_t> keys(size);
    for (auto& key : keys) index.insert(key = random(), 7);
    const std::size_t bytes = index.bytes();
    for (int i = 0; i < 40'000; ++i) {
      auto& key = keys[random() % size];
      REQUIRE(index.erase(key) == 7);
      index.insert(key = random(), 7);
      REQUIRE(found(index, random()) == Index::kAbsent);  // ends
    }
    CHECK(index.bytes() == bytes);
    for (const std::uint64_t key : keys) REQUIRE(found(index, key) == 7);
    for (std::size_t bucket = 0; bucket < index.num_buckets(); ++bucket)
      for (const std::uint64_t key : keys)
        if (index.home(mixed(key)) == index.home(0) + bucket && index.home(0)[bucket].passed > 0)
          REQUIRE(index.home(0)[bucket].used == 31);  // only full ones are passed
  }
}

TEST_CASE("an index knows which of its rows changed since it was asked last") {
  Index index;
  for (std::uint64_t key = 0; key < 100; ++key) index.insert(key, 0);
  const auto num_changed = [&] {
    int count = 0;
    index.for_each([&](std::uint64_t, std::uint32_t, bool changed) { count += changed ? 1 : 0; });
    return count;
  };
  CHECK(num_changed() == 100);
  index.clear_changed();
  CHECK(num_changed() == 0);
  index.find_to_change(index.home(mixed(5)), 5);
  for (std::uint64_t key = 100; key < 300; ++key) index.insert(key, 0);  // grows
  CHECK(num_changed() == 201);
  index.erase(5);
  index.clear_changed();
  index.insert(5, 0);
  CHECK(num_changed() == 1);
}
