// SPDX-License-Identifier: Apache-2.0
// One collective call of a hierarchy, as calls of its two communicators.
#pragma once

#include <cstdint>

#include "shoal/comm/call.h"
#include "shoal/comm/hierarchy/members.h"

namespace shoal::comm {

struct OnHosts {
  const HostMembers& members;
  int rank = 0;
  Communicator& here;              // ranks of this host; its first rank is number 0
  Communicator* firsts = nullptr;  // the first ranks of all hosts; on these alone

  // Throws InvalidInput where ranks call different things, and what the communicators throw.
  void run(const Request& request, const Call& call, std::uint64_t number) const;

 private:
  bool is_first() const { return firsts != nullptr; }
  int host() const { return members.host_of(rank); }

  void compare_here(const Call& call, std::uint64_t number) const;
  void compare_hosts(const Call& call, std::uint64_t number) const;

  void all_reduce(const Request& request) const;
  void broadcast(const Request& request) const;
  void reduce(const Request& request) const;
  void gather(const Request& request, bool to_all) const;
  void scatter(const Request& request) const;
  void reduce_scatter(const Request& request) const;
  void all_to_all(const Request& request, std::uint64_t number) const;
  void barrier() const;
};

}  // namespace shoal::comm
