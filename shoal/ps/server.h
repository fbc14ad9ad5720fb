// SPDX-License-Identifier: Apache-2.0
// Serves tables to who has the job's key. A server has loops, each a thread with a port of its own that owns
// every n-th shard of all tables (n: the loops of all servers); a client talks to the loop that owns a key,
// so that no request passes from thread to thread. With a map (shard_map.h) it also has copies of what other
// servers' loops own, and owns that when they have gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/ps/cold_store.h"
#include "shoal/ps/map_keeper.h"
#include "shoal/ps/shard_map.h"
#include "shoal/ps/table.h"
#include "shoal/rendezvous/key.h"

namespace shoal::ps {

struct ServerOptions {                          // of one of several
  std::string address = "127.0.0.1";            // of one interface
  std::uint32_t loops = 1;                      // of this server
  std::uint32_t first_loop = 0, all_loops = 1;  // this server's first, and those of all servers
  std::uint32_t epoch = 1;                      // requests of another one are refused
  std::optional<MapKeeper> maps = {};           // none: loop i has part i, without a copy
  ColdOptions cold = {};                        // where rows lie that memory has no room for
  // Where a change of the map by this server ends that a part has no copy; on the thread of a loop, and may not throw.
  std::function<void()> all_copied = {};
};

// Serves until it is destroyed, on threads of its own.
class Server {
 public:
  // Throws InvalidInput where the address is not of here, or names every interface, and for loops beyond
  // all_loops.
  Server(const rendezvous::Key& key, const ServerOptions& options);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  std::vector<Endpoint> endpoints() const;  // one a loop
  std::int64_t num_refused() const;         // connections without the key; any thread
  std::int64_t num_applied()
      const;  // pushes to parts that are its own; a repeated one counts once; any thread

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace shoal::ps
