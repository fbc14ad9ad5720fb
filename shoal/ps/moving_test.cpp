// SPDX-License-Identifier: Apache-2.0
// Servers come and leave while workers train, and end in the middle of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "shoal/base/error_test.h"
#include "shoal/base/sanitized.h"
#include "shoal/base/text.h"
#include "shoal/ps/moves.h"
#include "shoal/ps/servers_test.h"

using namespace shoal;
using namespace shoal::ps;
using namespace shoal::ps::test;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

static constexpr int kRuns = kIsSanitized ? 3 : 8;
static constexpr std::uint32_t kWorkers = 3;
static constexpr std::uint64_t kRounds = 150;

namespace {

// In the middle of training, at some rounds: a server comes, leaves or is killed.
struct Event {
  enum class Kind { Add, Remove, Kill };
  std::uint64_t round = 0;
  Kind kind = Kind::Add;
};

struct Trained {
  std::vector<std::vector<float>> rows;  // that each worker pulled, of all rounds
  std::pair<std::uint64_t, std::int64_t> digest;
  std::int64_t applied = 0;
  double pause = 0;  // seconds that a round took at most
};

struct Setup {
  std::uint32_t servers = 1, loops = 1, parts = 12, copies = 2;
  std::vector<Event> events;
  std::uint32_t seed = 1;
};

class Training {
 public:
  explicit Training(const Setup& setup)
      : setup_(setup), servers_(setup.servers, setup.loops, setup.parts, setup.copies), random_(setup.seed) {}

  Trained run();

 private:
  void work(std::uint32_t worker);
  void happen(const Event& event);
  void look();
  bool is_safe() const {  // no row is lost where one ends
    const ShardMap map = servers_.maps.find();
    return std::ranges::none_of(map.parts, [](const auto& part) { return part.copy == ShardMap::kNone; });
  }
  template <class Is>
  void until(const Is& is) {
    for (const auto end = Clock::now() + 20s; !is(); look()) {
      REQUIRE(Clock::now() < end);
      std::this_thread::yield();
    }
  }

  const Setup setup_;
  CopyingServers servers_;
  std::mt19937 random_;
  Trained trained_;
  std::mutex mutex_;  // guards the pause
  std::atomic<std::uint64_t> begun_ = 0;
};

}  // namespace

void Training::work(std::uint32_t worker) {
  Client client = servers_.client();
  const auto table = client.create(counted());
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    const Share share(worker, round);
    begun_ = std::max(begun_.load(), round);
    begun_.notify_all();
    const auto begin = Clock::now();
    std::vector<float> rows(share.gradients.size());
    client.pull(table, share.keys, rows);
    trained_.rows[worker].insert(trained_.rows[worker].end(), rows.begin(), rows.end());
    client.push(table, share.push(worker, kWorkers, round));
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    const std::scoped_lock lock(mutex_);
    trained_.pause = std::max(trained_.pause, took);
  }
}

// What each server's process does every now and then: one that has left ends.
void Training::look() {
  for (std::size_t server = 0; server < servers_.all.size(); ++server)
    if (servers_.all[server] &&
        !servers_.maps.join(static_cast<int>(server), servers_.all[server]->endpoints()))
      servers_.all[server].reset();
}

void Training::happen(const Event& event) {
  if (event.kind == Event::Kind::Add) {
    servers_.all.push_back(nullptr);
    servers_.come_again(servers_.all.size() - 1, setup_.loops);
    return;
  }
  const ShardMap map = servers_.maps.find();
  const std::vector<int> staying = map.staying();
  if (staying.size() < 2) return;
  const int which = staying[random_() % staying.size()];
  if (event.kind == Event::Kind::Remove) {
    for (ShardMap seen = map; !seen.is_leaving(which);)
      seen = servers_.maps.replace(seen, with_leaving(seen, which));
  } else if (is_safe()) {
    servers_.end(static_cast<std::size_t>(which));
    servers_.come_again(static_cast<std::size_t>(which), setup_.loops);
  }
}

Trained Training::run() {
  trained_.rows.resize(kWorkers);
  std::vector<std::string> errors(kWorkers);
  std::vector<std::thread> workers;
  for (std::uint32_t worker = 0; worker < kWorkers; ++worker)
    workers.emplace_back([&, worker] {
      errors[worker] = error_of([&] { work(worker); });
      begun_ = kRounds;
      begun_.notify_all();
    });
  auto event = setup_.events.begin();
  for (std::uint64_t now = 0; now < kRounds; now = begun_) {
    for (; event != setup_.events.end() && event->round <= now; ++event) happen(*event);
    look();
    begun_.wait(now);
  }
  for (std::thread& worker : workers) worker.join();
  for (const std::string& error : errors) CHECK(error == "");
  for (; event != setup_.events.end(); ++event) happen(*event);
  until([&] { return num_moves(servers_.maps.find()) == 0; });
  const auto wanted = static_cast<std::int64_t>(kRounds * setup_.parts);
  until([&] { return servers_.num_applied() == wanted; });  // of loops that have seen the last map
  trained_.applied = servers_.num_applied();
  Client client = servers_.client();
  const auto table = client.create(counted());
  trained_.digest = client.digest(table);
  if (servers_.maps.find().num_wanted() < 2) return std::move(trained_);
  REQUIRE(is_safe());  // and copies are the same
  const std::vector<int> staying = servers_.maps.find().staying();
  servers_.end(static_cast<std::size_t>(staying[random_() % staying.size()]));
  REQUIRE(client.digest(table) == trained_.digest);
  return std::move(trained_);
}

static void check_same(const Trained& got, const Trained& wanted) {
  REQUIRE(got.rows == wanted.rows);
  REQUIRE(got.digest == wanted.digest);
  REQUIRE(got.applied == wanted.applied);
}

static std::string said(const std::vector<Event>& events) {
  std::string text;
  for (const Event& event : events)
    text += concat(std::array{"add ", "remove ", "kill "}[static_cast<std::size_t>(event.kind)], event.round,
                   " ");
  return text;
}

TEST_CASE(
    "servers 1, 2, 4, 3 while three workers train: the bits of an undisturbed run, each push and each row "
    "once") {
  using enum Event::Kind;
  for (const std::uint32_t copies : {2U, 1U}) {
    const Trained wanted = Training({.copies = copies}).run();
    CHECK(wanted.digest.second > 1000);
    double pause = 0;
    std::mt19937 random(copies);
    for (int i = 0; i < kRuns; ++i) {
      std::array<std::uint64_t, 4> at = {};
      for (std::uint64_t& round : at) round = random() % kRounds;
      std::ranges::sort(at);
      const Setup setup = {.loops = 1 + static_cast<std::uint32_t>(i % 2),
                           .copies = copies,
                           .events = {{at[0], Add}, {at[1], Add}, {at[2], Add}, {at[3], Remove}},
                           .seed = static_cast<std::uint32_t>(i)};
      CAPTURE(i);
      CAPTURE(said(setup.events));
      const Trained got = Training(setup).run();
      check_same(got, wanted);
      pause = std::max(pause, got.pause);
    }
    MESSAGE("a round took ", 1e3 * pause, " ms at most, ", 1e3 * wanted.pause, " ms where nobody moves");
  }
}

TEST_CASE("servers that are killed in the middle of moves lose nothing and double nothing") {
  using enum Event::Kind;
  const Trained wanted = Training({.servers = 2}).run();
  std::mt19937 random(1);
  for (int i = 0; i < 2 * kRuns; ++i) {
    Setup setup = {.servers = 2 + static_cast<std::uint32_t>(i % 2), .seed = static_cast<std::uint32_t>(i)};
    for (int event = 0; event < 7; ++event)
      setup.events.push_back({random() % kRounds, std::array{Add, Remove, Kill}[event % 3]});
    std::ranges::sort(setup.events, {}, &Event::round);
    // One that is killed as soon as another begins to be given parts.
    setup.events.insert(setup.events.begin(), {{1, Add}, {2 + random() % 4, Kill}});
    CAPTURE(i);
    CAPTURE(said(setup.events));
    check_same(Training(setup).run(), wanted);
  }
}

// Of clients that do not wait for each other, and have many pushes under way all the time: ones, which add up.
TEST_CASE("of pushes that nobody waits for each is applied once, wherever parts go") {
  for (int i = 0; i < 2 * kRuns; ++i) {
    CAPTURE(i);
    CopyingServers servers(1, 1, 6, i % 2 == 0 ? 1U : 2U);
    Adders adders(servers);
    const auto until_even = [&] {
      const auto end = Clock::now() + 20s;
      while (num_moves(servers.maps.find()) > 0 && Clock::now() < end) std::this_thread::yield();
      CHECK(num_moves(servers.maps.find()) == 0);
    };
    for (std::size_t server = 1; server < 3; ++server) {
      servers.all.push_back(nullptr);
      servers.come_again(server, 1);
      until_even();
    }
    for (ShardMap map = servers.maps.find(); !map.is_leaving(0);)
      map = servers.maps.replace(map, with_leaving(map, 0));
    until_even();
    CHECK(servers.maps.find().staying() == std::vector<int>{1, 2});  // nobody was taken for dead
    servers.end(0);
    adders.end();
  }
}
