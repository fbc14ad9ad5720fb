// SPDX-License-Identifier: Apache-2.0
// Servers in the process of a test, and what workers push there.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/ps/client.h"
#include "shoal/ps/server.h"
#include "shoal/rendezvous/memory_store.h"

namespace shoal::ps::test {

// Of so many loops each.
struct Servers {
  explicit Servers(std::vector<std::uint32_t> loops) {
    const std::uint32_t all = std::accumulate(loops.begin(), loops.end(), 0U);
    std::uint32_t first = 0;
    for (const std::uint32_t of_one : loops) {
      servers.push_back(std::make_unique<Server>(
          key, ServerOptions{.loops = of_one, .first_loop = first, .all_loops = all}));
      for (const Endpoint& endpoint : servers.back()->endpoints()) endpoints.push_back(endpoint);
      first += of_one;
    }
  }
  rendezvous::Key key = rendezvous::make_key();
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<Endpoint> endpoints;
};

// That have copies of each other's rows.
class CopyingServers {
 public:
  CopyingServers(std::uint32_t servers, std::uint32_t loops, std::uint32_t parts = 0,
                 std::uint32_t copies = 2,
                 const std::function<ColdOptions(std::uint32_t server)>& cold = {}) {
    std::vector<Endpoint> endpoints;
    for (std::uint32_t server = 0; server < servers; ++server) {
      all.push_back(made(loops, cold ? cold(server) : ColdOptions()));
      for (const Endpoint& endpoint : all.back()->endpoints()) endpoints.push_back(endpoint);
    }
    maps.begin(first_map(endpoints, {.loops_a_server = loops, .copies = copies, .parts = parts}));
  }
  std::unique_ptr<Server> made(std::uint32_t loops, const ColdOptions& cold = {}) const {
    return std::make_unique<Server>(
        key,
        ServerOptions{.loops = loops, .all_loops = loops, .maps = maps, .cold = cold, .all_copied = [this] {
                        ++num_copied;
                      }});
  }
  ClientOptions options() const { return {.limit = std::chrono::seconds{20}, .maps = maps}; }
  Client client() const { return {key, {}, options()}; }
  void end(std::size_t server) { all[server].reset(); }
  void come_again(std::size_t server, std::uint32_t loops, const ColdOptions& cold = {}) {
    all[server] = made(loops, cold);
    maps.join(static_cast<int>(server), all[server]->endpoints());
  }
  int num_without_copy() const { return maps.find().num_lacking(); }
  // Says of its first loop that it has gone, and it has not.
  void accuse(std::size_t server) const {
    const ShardMap map = maps.find();
    const int loop = map.loop_at(all[server]->endpoints()[0]);
    if (loop != ShardMap::kNone) maps.replace(map, without(map, loop));
  }
  std::int64_t num_applied() const {
    std::int64_t sum = 0;
    for (const auto& server : all)
      if (server) sum += server->num_applied();
    return sum;
  }

  rendezvous::Key key = rendezvous::make_key();
  rendezvous::MemoryStore store;
  const MapKeeper maps{store};
  mutable std::atomic<int> num_copied = 0;  // times that servers said so
  std::vector<std::unique_ptr<Server>> all;
};

// What a worker pushes in a round: the same whenever it is asked. New keys come all the time.
struct Share {
  Share(std::uint32_t worker, std::uint64_t round) {
    std::mt19937_64 random(round * 16 + worker);
    for (int i = 0; i < 60; ++i) keys.push_back(20 * round + random() % 400);
    std::ranges::sort(keys);
    keys.erase(std::ranges::unique(keys).begin(), keys.end());
    for (std::size_t i = 0; i < 3 * keys.size(); ++i)
      gradients.push_back(static_cast<float>(random() % 100) * 0.01f - 0.5f);
  }
  Push push(std::uint32_t worker, std::uint32_t workers, std::uint64_t round) const {
    return {.keys = keys,
            .gradients = gradients,
            .step = round,
            .worker = worker,
            .workers = workers,
            .round = round,
            .is_joint = true};
  }
  std::vector<std::uint64_t> keys;
  std::vector<float> gradients;
};

inline Definition counted() {
  return {.name = "ids",
          .seed = 3,
          .shards = 16,
          .parts = {{.width = 2}, {.width = 1, .earned_at = 3}},
          .admission = {.rule = AdmissionRule::Count, .threshold = 2},
          .scored = true,
          .life = {.decay = 0.5f}};
}

// Numbers that pushes of differences add up in, in any order.
inline Definition summed() {
  return {.name = "ids",
          .seed = 3,
          .shards = 16,
          .parts = {{.width = 1, .initial = {.rule = InitialRule::Constant, .scale = 0}}},
          .life = {.decay = 0.5f}};
}

// Two clients that do not wait for each other and have many pushes of ones under way, which add up in any order.
class Adders {
 public:
  explicit Adders(const CopyingServers& servers, std::uint64_t most_of_each = ~std::uint64_t{0})
      : servers_(servers), most_(most_of_each) {
    for (std::string& error : errors_)
      threads_.emplace_back([&] {
        error = error_of([&] { push(); });
        if (error.empty()) return;
        is_ended_ = true;
        ++pushes_;  // what waits sees no other end
        pushes_.notify_all();
      });
  }
  ~Adders() {
    is_ended_ = true;
    join();
  }

  void wait_for(std::uint64_t pushes) const {
    for (std::uint64_t now = pushes_; now < pushes && !is_ended_; now = pushes_) pushes_.wait(now);
  }
  // That each push was applied once.
  void end() {
    is_ended_ = true;
    check();
  }
  void check() {
    join();
    for (const std::string& error : errors_) CHECK(error == "");
    Client client = servers_.client();
    std::vector<float> rows(keys_.size());
    client.pull(client.create(summed()), keys_, rows);
    REQUIRE(rows == std::vector<float>(keys_.size(), static_cast<float>(pushes_.load())));
  }

 private:
  void push() {
    Client client = servers_.client();
    const auto table = client.create(summed());
    for (std::uint64_t push = 0; push < most_ && !is_ended_; ++push) {
      client.send(std::vector<Tables::PushTo>{
          {table, {.keys = keys_, .gradients = ones_, .of = PushOf::Differences}}});
      ++pushes_;
      pushes_.notify_all();
    }
    client.settle();
  }
  void join() {
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }
  static std::vector<std::uint64_t> first_keys() {
    std::vector<std::uint64_t> keys(50);
    std::iota(keys.begin(), keys.end(), 0);
    return keys;
  }

  const CopyingServers& servers_;
  const std::uint64_t most_;
  const std::vector<std::uint64_t> keys_ = first_keys();
  const std::vector<float> ones_ = std::vector<float>(keys_.size(), 1);
  std::atomic<std::uint64_t> pushes_ = 0;
  std::atomic<bool> is_ended_ = false;
  std::array<std::string, 2> errors_;
  std::vector<std::thread> threads_;
};

}  // namespace shoal::ps::test
