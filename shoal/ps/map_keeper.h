// SPDX-License-Identifier: Apache-2.0
// Where the map of the servers is: one place of the job, that changes it only for who has seen what it holds.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "shoal/ps/shard_map.h"
#include "shoal/rendezvous/store.h"

namespace shoal::ps {

// Any thread.
class MapKeeper {
 public:
  // Borrows the store.
  explicit MapKeeper(rendezvous::Store& store) : store_(&store) {}

  ShardMap find() const;  // of number 0 before the first
  // The same when there is one. Throws Timeout where none comes within the limit.
  ShardMap wait(std::chrono::nanoseconds limit) const;
  // The first one: where there is one already, that.
  ShardMap begin(const ShardMap& first) const { return put({}, first); }
  // This is one of the servers that a job begins with, which have as many loops each.
  void enroll(int server, const std::vector<Endpoint>& loops) const;
  // The first map of so many of those, where all have enrolled; else of number 0.
  ShardMap begin(int servers, std::uint32_t copies, std::uint32_t parts) const;
  // `next` in place of `seen`, or what somebody else has put there meanwhile.
  ShardMap replace(const ShardMap& seen, const ShardMap& next) const { return put(to_text(seen), next); }
  // This server is there with these loops, where the job has a map and that does not say so. False: it was to leave,
  // and has: nobody asks it for anything any more.
  bool join(int server, const std::vector<Endpoint>& loops) const;

 private:
  ShardMap put(const std::string& seen, const ShardMap& next) const;

  rendezvous::Store* store_;
};

}  // namespace shoal::ps
