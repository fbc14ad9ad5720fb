// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/exchange.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "shoal/base/error_test.h"
#include "shoal/ps/client.h"
#include "shoal/ps/forwarding_test.h"
#include "shoal/ps/servers_test.h"

using namespace shoal;
using namespace shoal::ps;
using test::Servers;

using Keys = std::vector<std::uint64_t>;

// Rows that count: each push adds 1.
static Definition counts() {
  return {.name = "counts",
          .dtype = DType::Float64,
          .parts = {{.width = 1,
                     .optimizer = {.rule = RowRule::Sgd, .rate = 1},
                     .initial = {.rule = InitialRule::Constant, .scale = 0}}}};
}

static Definition learned() {
  return {.name = "learned", .parts = {{.width = 3, .optimizer = {.rule = RowRule::Adagrad, .rate = 0.1}}}};
}

static void add_one(Exchange& exchange, const Keys& keys) {
  const std::vector<double> gradients(keys.size(), -1);
  std::vector<Tables::PushTo> pushes = {{.push = {.keys = keys, .gradients = gradients}}};
  exchange.push(pushes);
}

static double count_of(Exchange& exchange, std::uint64_t key) {
  std::vector<double> row(1);
  exchange.pull(0, Keys{key}, row);
  return row[0];
}

// act(worker, exchange, tables) of each, at the same time.
template <class Act>
static void all_workers(const Servers& servers, const Definition& definition, ExchangeOptions options,
                        const Act& act) {
  std::vector<std::thread> threads;
  std::atomic<std::uint32_t> ready = 0;
  for (std::uint32_t worker = 0; worker < options.workers; ++worker)
    threads.emplace_back([&, worker, options]() mutable {
      options.worker = worker;
      Client client(servers.key, servers.endpoints);
      const auto exchange = make_exchange(client, options);
      exchange->add(client.create(definition), definition);
      for (++ready; ready < options.workers;) std::this_thread::yield();  // rounds begin alike
      act(worker, *exchange, client);
    });
  for (std::thread& thread : threads) thread.join();
}

// What three workers read in sync mode, and what comes of it; each tells its keys of the next batch, or some of
// them and others, or none.
enum class Tells : std::uint8_t { Nothing, All, Wrong };
static std::vector<float> read_in_sync(std::size_t cache_rows, Tells tells) {
  Servers servers({1, 1});
  std::array<std::vector<float>, 3> read;
  std::uint64_t digest = 0;
  all_workers(servers, learned(), {.workers = 3, .cache_rows = cache_rows},
              [&](std::uint32_t worker, Exchange& exchange, Client& client) {
                std::mt19937 random(worker);
                const auto batch = [&] {
                  Keys keys;
                  for (std::uint64_t key = 0; key < 60; ++key)
                    if (random() % (1 + key / 4) == 0) keys.push_back(key);
                  return keys;
                };
                Keys keys = batch();
                for (int step = 0; step < 40; ++step) {
                  Keys next = batch(), told = next;
                  if (tells == Tells::Wrong) told.resize(told.size() / 2);
                  if (tells == Tells::Wrong) told.push_back(1000 + static_cast<std::uint64_t>(step % 2));
                  if (tells == Tells::Wrong ? step % 3 != 0 : tells == Tells::All) exchange.expect(0, told);
                  std::vector<float> rows(3 * keys.size()), gradients;
                  exchange.pull(0, keys, rows);
                  read[worker].insert(read[worker].end(), rows.begin(), rows.end());
                  for (const float value : rows) gradients.push_back(value - static_cast<float>(worker));
                  std::vector<Tables::PushTo> pushes = {{.push = {.keys = keys, .gradients = gradients}}};
                  exchange.push(pushes);
                  keys = next;
                }
                if (worker == 0) digest = client.digest(0).first;
              });
  std::vector<float> all = {static_cast<float>(digest % 65536), static_cast<float>(digest / 65536 % 65536)};
  for (const auto& of_one : read) all.insert(all.end(), of_one.begin(), of_one.end());
  return all;
}

TEST_CASE("in sync mode neither what is kept nor what is asked for ahead changes a bit") {
  const auto wanted = read_in_sync(0, Tells::Nothing);
  CHECK(read_in_sync(1000, Tells::Nothing) == wanted);
  CHECK(read_in_sync(1000, Tells::All) == wanted);
  CHECK(read_in_sync(1000, Tells::Wrong) == wanted);
  CHECK(read_in_sync(10, Tells::All) == wanted);  // more than there is room for
}

TEST_CASE("in half_async mode no row lacks more batches than allowed, of any worker") {
  constexpr std::uint64_t kBatches = 60;
  for (const std::uint32_t staleness : {0U, 1U, 4U, 7U}) {
    Servers servers({1, 1});
    std::atomic<std::uint64_t> stalest = 0;
    std::atomic<int> too_old = 0, wrong_ends = 0, fresh = 0;
    all_workers(servers, counts(),
                {.mode = Mode::HalfAsync, .workers = 3, .staleness = staleness, .cache_rows = 100},
                [&](std::uint32_t worker, Exchange& exchange, Client&) {
                  std::mt19937 random(worker);
                  for (std::uint64_t batch = 0; batch < kBatches; ++batch) {
                    const double seen = count_of(exchange, 5), newest = 3.0 * static_cast<double>(batch);
                    if (seen + 3.0 * staleness < newest) ++too_old;
                    if (seen >= newest) ++fresh;
                    add_one(exchange, {5, 100 + random() % 10});
                    for (auto turns = random() % 8 == 0 ? 300 : 0; turns > 0; --turns)
                      std::this_thread::yield();
                  }
                  exchange.settle();
                  if (count_of(exchange, 5) != 3.0 * kBatches) ++wrong_ends;
                  if (*exchange.stalest() > stalest) stalest = *exchange.stalest();
                });
    CHECK(too_old == 0);
    CHECK(wrong_ends == 0);
    CHECK(stalest == staleness);
    if (staleness == 4) CHECK(fresh < 3 * kBatches);  // rows are kept
  }
}

TEST_CASE("in async mode nobody waits, and what is settled is there") {
  Servers servers({1, 1});
  std::atomic<int> wrong = 0;
  all_workers(servers, counts(), {.mode = Mode::Async, .workers = 2},
              [&](std::uint32_t worker, Exchange& exchange, Client&) {
                const std::uint64_t own = worker + 1;
                for (int batch = 0; batch < 50; ++batch) {
                  if (count_of(exchange, own) != batch) ++wrong;  // its own pushes go before its pulls
                  add_one(exchange, {own, 7});
                }
                exchange.settle();
                if (count_of(exchange, 7) != 100) ++wrong;
              });
  CHECK(wrong == 0);
}

TEST_CASE("in geo mode a worker trains its rows, and what became of them adds up") {
  Servers servers({1, 1});
  std::atomic<int> wrong = 0;
  all_workers(servers, counts(), {.mode = Mode::Geo, .workers = 2, .geo_steps = 5},
              [&](std::uint32_t worker, Exchange& exchange, Client& client) {
                const std::uint64_t own = worker + 1;
                std::vector<double> there(1);
                for (int batch = 0; batch < 52; ++batch) {
                  if (count_of(exchange, own) != batch) ++wrong;
                  if (count_of(exchange, 7) < batch) ++wrong;  // its own at least
                  client.pull(0, Keys{own}, there);
                  if (there[0] != batch / 5 * 5) ++wrong;  // what was exchanged
                  const std::uint64_t third = 100 + static_cast<std::uint64_t>(batch % 9);
                  count_of(exchange, third);
                  add_one(exchange, {own, 7, third});
                }
                exchange.settle();
                if (count_of(exchange, 7) != 104) ++wrong;
                if (count_of(exchange, 100) != 12) ++wrong;  // of batches 0, 9, …, 45, of both
              });
  CHECK(wrong == 0);
}

TEST_CASE("geo trains rows by their optimizer, and refuses what it knows nothing of") {
  Definition definition = learned();
  const auto tables = tables_in_process();
  const auto exchange = make_exchange(*tables, {.mode = Mode::Geo, .geo_steps = 3});
  exchange->add(tables->create(definition), definition);
  Table alone(definition);
  const Keys keys = {3, 4};
  std::vector<float> rows(6), wanted(6);
  for (int step = 0; step < 8; ++step) {
    exchange->pull(0, keys, rows);
    alone.pull(keys, wanted);
    for (std::size_t i = 0; i < 6; ++i) CHECK(rows[i] == doctest::Approx(wanted[i]).epsilon(1e-5));
    std::vector<Tables::PushTo> pushes = {{.push = {.keys = keys, .gradients = rows}}};
    exchange->push(pushes);
    alone.push({.keys = keys, .gradients = wanted});
  }
  definition.name = "earned";
  definition.scored = true;
  definition.parts.push_back({.width = 2, .earned_at = 3});
  CHECK(error_of([&] { exchange->add(tables->create(definition), definition); }) ==
        "ps: table \"earned\" has a part that its keys have to earn, and in geo mode the worker trains rows "
        "and knows no scores. Remedy: earned_at = 0, or another mode");
}

// Keys that are asked for, of whatever kind a pull is.
class Asked final : public test::Forwarding {
 public:
  using Forwarding::Forwarding;
  void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows,
            const After& after) override {
    at_once.insert(at_once.end(), keys.begin(), keys.end());
    Forwarding::pull(table, keys, rows, after);
  }
  std::unique_ptr<Pulling> start_pull(TableNumber table, std::span<const std::uint64_t> keys) override {
    ahead.insert(ahead.end(), keys.begin(), keys.end());
    return Forwarding::start_pull(table, keys);
  }
  Keys at_once, ahead;
};

TEST_CASE("rows that are expected are asked for ahead, and those among them that a push writes once more") {
  Asked tables(tables_in_process());
  const auto exchange = make_exchange(tables, {.cache_rows = 100});
  exchange->add(tables.create(counts()), counts());
  count_of(*exchange, 1);
  exchange->expect(0, Keys{1, 2, 3});
  CHECK(tables.ahead == Keys{2, 3});
  add_one(*exchange, {1});
  CHECK(tables.ahead == Keys{2, 3, 1});
  CHECK(count_of(*exchange, 1) == 1);
  CHECK(count_of(*exchange, 3) == 0);
  CHECK(tables.at_once == Keys{1});
}

static Definition named(Definition definition, std::string name) {
  definition.name = std::move(name);
  return definition;
}

TEST_CASE("of a step with a gradient that is not finite nothing is applied, in no table and no mode") {
  for (const Mode mode : {Mode::Sync, Mode::Async, Mode::HalfAsync, Mode::Geo}) {
    CAPTURE(name_of(mode));
    Servers servers({1, 1});
    Client client(servers.key, servers.endpoints);
    const auto exchange = make_exchange(client, {.mode = mode});
    for (const char* name : {"first", "second"}) {
      const Definition definition = named(counts(), name);
      exchange->add(client.create(definition), definition);
    }
    std::vector<double> row(1);
    for (const std::uint32_t table : {0U, 1U}) exchange->pull(table, Keys{1}, row);
    const Keys keys = {1};
    const std::vector<double> good = {-1}, bad = {std::nan("")};
    std::vector<Tables::PushTo> pushes = {{.table = 0, .push = {.keys = keys, .gradients = good}},
                                          {.table = 1, .push = {.keys = keys, .gradients = bad}}};
    CHECK(contains(error_of([&] {
                     exchange->push(pushes);
                     exchange->settle();
                   }),
                   "not finite"));
    exchange->settle();
    for (const std::uint32_t table : {0U, 1U}) {
      exchange->pull(table, Keys{1}, row);
      CHECK(row[0] == 0);
    }
    pushes[1].push.gradients = good;
    exchange->push(pushes);
    exchange->settle();
    exchange->pull(1, Keys{1}, row);
    CHECK(row[0] == 1);
  }
}

TEST_CASE("what is settled is read after a push that one of several workers refused") {
  Servers servers({1, 1});
  std::atomic<int> wrong = 0;
  all_workers(servers, counts(), {.workers = 2},
              [&](std::uint32_t worker, Exchange& exchange, Client& client) {
                const Keys keys = {1};
                const std::vector<double> gradients = {worker == 0 ? -1 : std::nan("")};
                std::vector<Tables::PushTo> pushes = {{.push = {.keys = keys, .gradients = gradients}}};
                if (!contains(error_of([&] { exchange.push(pushes); }), "not finite")) ++wrong;
                exchange.settle();
                std::vector<double> row(1);
                client.pull(0, keys, row, exchange.settled());  // waits for no push that will not come
                if (row[0] != 0) ++wrong;
                add_one(exchange, keys);
                exchange.settle();
                if (count_of(exchange, 1) != 2) ++wrong;
              });
  CHECK(wrong == 0);
  // Those that come later begin after the round that was not to be.
  all_workers(servers, counts(), {.workers = 2}, [&](std::uint32_t worker, Exchange& exchange, Client&) {
    const Keys keys = {1};
    const std::vector<double> gradients = {worker == 0 ? -1 : std::nan("")};
    std::vector<Tables::PushTo> pushes = {{.push = {.keys = keys, .gradients = gradients}}};
    if (!contains(error_of([&] { exchange.push(pushes); }), "not finite")) ++wrong;
  });
  all_workers(servers, counts(), {.workers = 2}, [&](std::uint32_t, Exchange& exchange, Client&) {
    add_one(exchange, {1});
    exchange.settle();
    if (count_of(exchange, 1) != 4) ++wrong;
  });
  CHECK(wrong == 0);
}

TEST_CASE("a worker that comes to tables with rows goes on from their rounds, however many there were") {
  Servers servers({1});
  const auto run = [&](Mode mode, std::uint32_t workers) {
    all_workers(servers, counts(), {.mode = mode, .workers = workers},
                [&](std::uint32_t, Exchange& exchange, Client&) {
                  for (int batch = 0; batch < 3; ++batch) {
                    count_of(exchange, 1);
                    add_one(exchange, {1});
                  }
                  exchange.settle();
                });
  };
  for (const Mode mode : {Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Geo, Mode::Sync})
    for (const std::uint32_t workers : {2U, 3U, 1U}) run(mode, workers);
  Client client(servers.key, servers.endpoints);
  std::vector<double> count(1);
  client.pull(client.create(counts()), Keys{1}, count);
  CHECK(count[0] == 5 * 3 * (2 + 3 + 1));
}
