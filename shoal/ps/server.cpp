// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/server.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/ps/loop.h"

namespace shoal::ps {

static constexpr auto kBetweenLooks = std::chrono::milliseconds{50};

class Server::Service {
 public:
  Service(const rendezvous::Key& key, const ServerOptions& options) : cold_(options.cold) {
    SHOAL_CHECK(options.loops > 0 && options.first_loop + options.loops <= options.all_loops, InvalidInput,
                "ps: a server has loops ", options.first_loop, " to ", options.first_loop + options.loops - 1,
                " of ", options.all_loops);
    for (std::uint32_t i = 0; i < options.loops; ++i)
      loops_.push_back(std::make_unique<Loop>(key, options, options.first_loop + i, cold_));
    if (options.maps) looker_ = std::thread([this, maps = *options.maps] { look(maps); });
  }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  ~Service() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    ended_.notify_all();
    if (looker_.joinable()) looker_.join();
  }
  const std::vector<std::unique_ptr<Loop>>& loops() const { return loops_; }

 private:
  // Tells loops of maps that nobody asks them by.
  void look(const MapKeeper& maps) {
    std::uint32_t seen = 0;
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kBetweenLooks, [this] { return ends_; })) {
      const auto map = found(maps);
      if (!map || map->number <= seen) continue;
      seen = map->number;
      for (const auto& loop : loops_) loop->see(*map);
    }
  }
  // None where the job's store is slow, or the job ends.
  static std::optional<ShardMap> found(const MapKeeper& maps) {
    try {
      return maps.find();
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  const ColdTier cold_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::mutex mutex_;  // guards ends_
  bool ends_ = false;
  std::condition_variable ended_;
  std::thread looker_;
};

Server::Server(const rendezvous::Key& key, const ServerOptions& options)
    : service_(std::make_unique<Service>(key, options)) {}

Server::~Server() = default;

std::vector<Endpoint> Server::endpoints() const {
  std::vector<Endpoint> all;
  for (const auto& loop : service_->loops()) all.push_back(loop->endpoint());
  return all;
}

std::int64_t Server::num_refused() const {
  std::int64_t sum = 0;
  for (const auto& loop : service_->loops()) sum += loop->num_refused();
  return sum;
}

std::int64_t Server::num_applied() const {
  std::int64_t sum = 0;
  for (const auto& loop : service_->loops()) sum += loop->num_applied();
  return sum;
}

}  // namespace shoal::ps
