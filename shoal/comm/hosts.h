// SPDX-License-Identifier: Apache-2.0
// Which ranks share a host, as the kernel has it: not from names or environment variables, which may lie.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/rendezvous/store.h"

namespace shoal::comm {

// The same for two processes exactly where they can share memory as comm/shm does: one boot of one machine,
// one namespace of processes (a container has its own), one user. Throws Infeasible where the kernel does not
// say.
std::string host_identity();

// For each rank the first rank of its host. Every rank calls it, with the same `key`. Throws Timeout where
// some do not.
std::vector<int> first_ranks_of_hosts(rendezvous::Store& store, std::string_view key, int rank, int size,
                                      std::chrono::nanoseconds limit);
// The same of known identities, by rank.
std::vector<int> first_ranks_of_hosts(const std::vector<std::string>& identities);

}  // namespace shoal::comm
