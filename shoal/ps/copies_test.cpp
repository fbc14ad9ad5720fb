// SPDX-License-Identifier: Apache-2.0
// Servers that end in the middle of what they do.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <random>
#include <thread>

#include "shoal/base/error_test.h"
#include "shoal/base/sanitized.h"
#include "shoal/base/text.h"
#include "shoal/ps/client.h"
#include "shoal/ps/server.h"
#include "shoal/ps/servers_test.h"

using namespace shoal;
using namespace shoal::ps;
using namespace shoal::ps::test;
using namespace std::chrono_literals;

static constexpr int kKills = kIsSanitized ? 40 : 300;
static constexpr std::uint32_t kWorkers = 3;
static constexpr std::uint64_t kRounds = 12;

// Rows that were pulled by each worker in each round, all of them after each other; and what becomes of the table.
struct Trained {
  std::vector<std::vector<float>> rows;
  std::pair<std::uint64_t, std::int64_t> digest;
  std::int64_t applied = 0;
  friend bool operator==(const Trained&, const Trained&) = default;
};

// Not asleep: so long alone would be too long.
static void wait(std::chrono::microseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

// What befalls a server when the last worker has come to some round, and so long after.
struct Mishap {
  std::size_t server = 0;
  std::uint64_t round = 0;
  std::chrono::microseconds later = 0us;
  bool is_accused = false;  // or ends
};

// Workers train together.
static Trained train(std::uint32_t loops, const std::optional<Mishap>& mishap) {
  CopyingServers servers(2, loops);
  Trained trained = {.rows = std::vector<std::vector<float>>(kWorkers)};
  std::atomic<std::uint64_t> begun = 0;
  const auto work = [&](std::uint32_t worker) {
    std::optional<Client> client;
    Client::TableNumber table = 0;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      // A new one looks at the map, so that not all hear at once of a server that has not gone.
      if (round == 1 || (mishap && mishap->is_accused && (round + worker) % kWorkers == 0)) {
        client.emplace(servers.key, std::vector<Endpoint>(), servers.options());
        table = client->create(counted());
      }
      const Share share(worker, round);
      begun = std::max(begun.load(), round);
      begun.notify_all();
      std::vector<float> rows(share.gradients.size());
      client->pull(table, share.keys, rows);
      trained.rows[worker].insert(trained.rows[worker].end(), rows.begin(), rows.end());
      client->push(table, share.push(worker, kWorkers, round));
    }
  };
  std::vector<std::string> errors(kWorkers);
  std::vector<std::thread> workers;
  for (std::uint32_t worker = 0; worker < kWorkers; ++worker)
    workers.emplace_back([&, worker] {
      errors[worker] = error_of([&] { work(worker); });
      begun = kRounds;
      begun.notify_all();
    });
  if (mishap) {
    for (std::uint64_t now = begun; now < mishap->round; now = begun) begun.wait(now);
    wait(mishap->later);
    mishap->is_accused ? servers.accuse(mishap->server) : servers.end(mishap->server);
  }
  for (std::thread& worker : workers) worker.join();
  for (const std::string& error : errors) CHECK(error == "");
  Client client = servers.client();
  const auto table = client.create(counted());
  trained.applied = servers.num_applied();
  client.shrink(table, 1);
  trained.digest = client.digest(table);
  return trained;
}

TEST_CASE("of two that change the same map the first is heard") {
  rendezvous::MemoryStore store;
  const MapKeeper maps(store);
  CHECK(maps.find() == ShardMap());
  const ShardMap first = maps.begin(first_map({{"127.0.0.1", 1}, {"127.0.0.1", 2}}, {}));
  CHECK(maps.begin(first_map({{"127.0.0.1", 3}, {"127.0.0.1", 4}}, {})) == first);
  const ShardMap next = maps.replace(first, without(first, 0));
  CHECK(next == without(first, 0));
  CHECK(maps.replace(first, without(first, 1)) == next);
  CHECK(maps.find() == next);
}

TEST_CASE("servers that a job begins with make its first map when all are there") {
  rendezvous::MemoryStore store;
  const MapKeeper maps(store);
  CHECK(contains(error_of([&] { maps.wait(0s); }), "the job's servers have not all come within 0 s"));
  maps.enroll(1, {{"127.0.0.1", 3}, {"127.0.0.1", 4}});
  CHECK(maps.begin(2, 2, 6) == ShardMap());
  maps.enroll(0, {{"127.0.0.1", 1}, {"127.0.0.1", 2}});
  const std::vector<Endpoint> loops = {
      {"127.0.0.1", 1}, {"127.0.0.1", 2}, {"127.0.0.1", 3}, {"127.0.0.1", 4}};
  const ShardMap wanted = first_map(loops, {.loops_a_server = 2, .copies = 2, .parts = 6});
  CHECK(maps.begin(2, 2, 6) == wanted);
  CHECK(maps.wait(0s) == wanted);
  store.set("ps/server/0", "here");
  CHECK(contains(error_of([&] { maps.begin(2, 2, 6); }), "a server says that it listens at \"here\""));
}

TEST_CASE(
    "servers that end at any moment, or are said to, lose no push and double none: the bits of an "
    "undisturbed run") {
  for (const std::uint32_t loops : {1U, 2U}) {
    const Trained wanted = train(loops, {});
    CHECK(wanted.applied == static_cast<std::int64_t>(kRounds * 2 * loops));
    CHECK(wanted.digest.second > 100);
    std::mt19937 random(loops);
    for (int i = 0; i < kKills / 2; ++i) {
      const Mishap mishap = {.server = random() % 2,
                             .round = random() % (kRounds + 1),
                             .later = std::chrono::microseconds(random() % 1500),
                             .is_accused = i % 4 == 3};
      CAPTURE(i);
      Trained got = train(loops, mishap);
      if (mishap.is_accused) got.applied = wanted.applied;  // it counts on until it hears of it
      REQUIRE(got.applied == wanted.applied);
      REQUIRE(got.digest == wanted.digest);
      REQUIRE(got == wanted);
    }
  }
}

// Of clients that do not wait for each other, and have many pushes under way: ones, which add up in any order.
TEST_CASE("of pushes that nobody waits for each is applied once, whenever a server ends") {
  constexpr std::uint64_t kPushes = 120;  // of each
  std::mt19937 random(1);
  for (int i = 0; i < kKills / 4; ++i) {
    CAPTURE(i);
    CopyingServers servers(3, 1);
    Adders adders(servers, kPushes);
    adders.wait_for(random() % (2 * kPushes));
    servers.end(random() % 3);
    adders.check();
    REQUIRE(servers.num_applied() == 2 * kPushes * 3);
  }
}

// A copy that has some of the shards would let go of other rows than its primary, which has all.
TEST_CASE("a shrink to a bound while a copy is being made leaves both with the same rows") {
  Definition definition = counted();
  definition.life.max_rows = 200;
  definition.shards = 256;  // they go to a copy a few at a time
  CopyingServers servers(2, 1), calm(2, 1);
  Client client = servers.client(), wanted = calm.client();
  const auto table = client.create(definition), same = wanted.create(definition);
  std::mt19937 random(1);
  std::uint64_t round = 0;
  for (int turn = 0; turn < kKills / 10; ++turn) {
    CAPTURE(turn);
    const std::size_t which = turn % 2;  // of which the other one has been given the rows
    servers.end(which);
    REQUIRE(client.digest(table) ==
            wanted.digest(same));  // of the copy; later shrinks would hide what it lacks
    servers.come_again(which, 1);
    const auto begin = std::chrono::steady_clock::now();
    do {
      REQUIRE(std::chrono::steady_clock::now() - begin < 20s);
      const Share share(0, ++round);
      const Push push = {.keys = share.keys, .gradients = share.gradients, .step = round};
      client.push(table, push);
      wanted.push(same, push);
      if (random() % 16 > 0) continue;
      client.shrink(table, static_cast<std::uint32_t>(round));
      wanted.shrink(same, static_cast<std::uint32_t>(round));
    } while (servers.num_without_copy() > 0);
  }
}

TEST_CASE("where both servers of a row have gone the client says so, and what to do") {
  CopyingServers servers(3, 1);
  Client client = servers.client();
  const auto table = client.create(counted());
  servers.end(1);
  CHECK(client.digest(table).second == 0);
  servers.end(2);
  CHECK(error_of([&] { client.digest(table); }) ==
        "ps: the servers that had part 1 of the tables have gone, its copy too, and its rows are lost. "
        "Remedy: go on "
        "from a checkpoint");
}

// Servers end one after the other, and each comes again as another process; in turns with shrinks, which are of whole
// tables.
TEST_CASE("servers that end and come again, over and over, are given the rows and lose nothing") {
  constexpr int kTurns = kKills / 20;
  for (const std::uint32_t loops : {1U, 2U}) {
    CopyingServers servers(2, loops);
    Table local(counted());
    Client client = servers.client();
    const auto table = client.create(counted());
    std::mt19937 random(loops);
    std::uint64_t round = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      CAPTURE(turn);
      const std::size_t which = random() % 2;
      const int said = servers.num_copied;
      servers.end(which);
      servers.come_again(which, loops);
      if (turn % 3 == 2) {  // and ends in the middle of being given them
        wait(std::chrono::microseconds(100'000 + random() % 4000));
        servers.end(which);
        servers.come_again(which, loops);
      }
      const auto begin = std::chrono::steady_clock::now();
      while (servers.num_without_copy() > 0 || servers.num_copied == said || random() % 4 > 0) {
        REQUIRE(std::chrono::steady_clock::now() - begin < 20s);
        const Share share(0, ++round);
        const Push push = {.keys = share.keys, .gradients = share.gradients, .step = round};
        client.push(table, push);
        local.push(push);
        if (random() % 16 > 0) continue;
        local.set_day(static_cast<std::uint32_t>(round));
        CHECK(client.shrink(table, static_cast<std::uint32_t>(round)).rows == local.shrink().rows);
      }
      REQUIRE(client.digest(table) == std::pair(local.digest(), local.num_rows()));
      CHECK(servers.num_copied - said <= (turn % 3 == 2 ? 2 : 1));
    }
    CHECK(servers.num_applied() > 0);
  }
}
