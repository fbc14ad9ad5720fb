// SPDX-License-Identifier: Apache-2.0
// Servers in the process of a test.
#pragma once

#include <memory>
#include <numeric>
#include <vector>

#include "shoal/ps/server.h"

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

}  // namespace shoal::ps::test
