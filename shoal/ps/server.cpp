// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/server.h"

#include "shoal/base/error.h"
#include "shoal/ps/loop.h"

namespace shoal::ps {

class Server::Service {
 public:
  Service(const rendezvous::Key& key, const ServerOptions& options) {
    SHOAL_CHECK(options.loops > 0 && options.first_loop + options.loops <= options.all_loops, InvalidInput,
                "ps: a server has loops ", options.first_loop, " to ", options.first_loop + options.loops - 1,
                " of ", options.all_loops);
    for (std::uint32_t i = 0; i < options.loops; ++i)
      loops_.push_back(std::make_unique<Loop>(key, options, options.first_loop + i));
  }
  const std::vector<std::unique_ptr<Loop>>& loops() const { return loops_; }

 private:
  std::vector<std::unique_ptr<Loop>> loops_;
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
