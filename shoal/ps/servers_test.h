// SPDX-License-Identifier: Apache-2.0
// Servers in the process of a test, and what workers push there.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

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
                 std::uint32_t copies = 2) {
    std::vector<Endpoint> endpoints;
    for (std::uint32_t server = 0; server < servers; ++server) {
      all.push_back(made(loops));
      for (const Endpoint& endpoint : all.back()->endpoints()) endpoints.push_back(endpoint);
    }
    maps.begin(first_map(endpoints, {.loops_a_server = loops, .copies = copies, .parts = parts}));
  }
  std::unique_ptr<Server> made(std::uint32_t loops) const {
    return std::make_unique<Server>(key, ServerOptions{.loops = loops, .all_loops = loops, .maps = maps});
  }
  ClientOptions options() const { return {.limit = std::chrono::seconds{20}, .maps = maps}; }
  Client client() const { return {key, {}, options()}; }
  void end(std::size_t server) { all[server].reset(); }
  void come_again(std::size_t server, std::uint32_t loops) {
    all[server] = made(loops);
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

}  // namespace shoal::ps::test
