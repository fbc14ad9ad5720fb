// SPDX-License-Identifier: Apache-2.0
// Servers whose tables are larger than their memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/base/temporary_folder_test.h"
#include "shoal/base/text.h"
#include "shoal/ps/client.h"
#include "shoal/ps/servers_test.h"

using namespace shoal;
using namespace shoal::ps;
using namespace shoal::ps::test;
using namespace std::chrono_literals;

static constexpr std::uint32_t kParts = 2, kRounds = 24;
static constexpr std::int64_t kMemory = kParts * (ColdDisk::kLeastMemory + (1 << 20));

static Definition wide() {
  Definition ids = counted();
  ids.parts = {{.width = 16}, {.width = 8, .earned_at = 3}};
  ids.admission = {};
  ids.life.max_unseen_days = 5;
  return ids;
}

// Many keys, of which few come often.
static Push drawn(std::mt19937& random, std::vector<std::uint64_t>& keys, std::vector<float>& gradients) {
  constexpr std::uint64_t kIds = 30000;
  keys.clear();
  for (int i = 0; i < 2500; ++i) keys.push_back(random() % (random() % 3 == 0 ? kIds : kIds / 20));
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  gradients.clear();
  for (std::size_t i = 0; i < 24 * keys.size(); ++i)
    gradients.push_back(static_cast<float>(random() % 1000) * 0.002f - 1);
  return {.keys = keys, .gradients = gradients};
}

TEST_CASE(
    "servers with most rows on disk hold, bit for bit, what a table in memory does, whoever is killed") {
  const TemporaryFolder folder;
  const auto cold = [&](std::uint32_t server) {
    return ColdOptions{.memory_bytes = kMemory, .folder = folder.path() / concat("server-", server)};
  };
  CopyingServers servers(2, 1, kParts, 2, cold);
  Client client = servers.client();
  const auto table = client.create(wide());
  Table warm(wide());
  std::mt19937 random(1);
  std::vector<std::uint64_t> keys;
  std::vector<float> gradients, rows, wanted;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const Push push = drawn(random, keys, gradients);
    client.push(table, push);
    warm.push(push);
    rows.resize(gradients.size());
    wanted.resize(gradients.size());
    drawn(random, keys, gradients);  // others
    rows.resize(gradients.size());
    wanted.resize(gradients.size());
    client.pull(table, keys, rows);
    warm.pull(keys, wanted);
    REQUIRE(rows == wanted);
    if (round % 6 == 5) {
      warm.set_day(round / 6);
      CHECK(client.shrink(table, round / 6) == warm.shrink());
    }
    if (round % 8 == 4) {  // it comes again with nothing, in the same folder, and is given its rows
      const std::size_t killed = round / 8 % 2;
      servers.end(killed);
      client.digest(table);  // is heard of by who asks
      servers.come_again(killed, 1, cold(static_cast<std::uint32_t>(killed)));
      for (const auto end = std::chrono::steady_clock::now() + 20s;
           servers.num_without_copy() > 0 && std::chrono::steady_clock::now() < end;)
        std::this_thread::yield();
      REQUIRE(servers.num_without_copy() == 0);
    }
    std::int64_t bytes = 0, on_disk = 0, all = 0;
    for (const auto& of_part : client.describe()) {
      bytes += of_part.at(0).bytes;
      on_disk += of_part.at(0).cold_rows;
      all += of_part.at(0).rows;
    }
    CHECK(bytes <= kMemory);
    CHECK(all == warm.num_rows());
    if (round + 1 == kRounds) CHECK(3 * on_disk > all);
  }
  CHECK(client.digest(table) == std::pair(warm.digest(), warm.num_rows()));
  Client other = servers.client();  // in files and back
  const SaveReport saved = client.save(table, folder.path() / "ids", 7);
  CHECK(saved.rows == warm.num_rows());
  client.clear(table);
  CHECK(client.load(table, folder.path() / "ids").rows == saved.rows);
  CHECK(client.digest(table) == std::pair(warm.digest(), warm.num_rows()));
}

TEST_CASE("too little memory, and a folder that another server has, are said when a table is made") {
  const TemporaryFolder folder;
  const ColdOptions little = {.memory_bytes = 9 << 20, .folder = folder.path() / "a"};
  CopyingServers servers(1, 1, kParts, 1, [&](std::uint32_t) { return little; });
  Client client = servers.client();
  CHECK(contains(error_of([&] { client.create(wide()); }),
                 "ps: table \"ids\": 4.5MiB of memory are less than the"));
  CHECK(contains(error_of([&] { open_rocksdb(folder.path() / "a"); }), "cannot be emptied"));
}
