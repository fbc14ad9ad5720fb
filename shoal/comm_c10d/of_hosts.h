// SPDX-License-Identifier: Apache-2.0
// The communicator that suits where ranks are:
//
//   one host                     shared memory
//   hosts of one rank each       Gloo
//   hosts, some of several       both (comm/hierarchy/hierarchy.h): shared memory within a host, Gloo between them
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "shoal/comm/communicator.h"
#include "shoal/rendezvous/store.h"

namespace shoal::comm_c10d {

struct OfHosts {                 // of this rank among all
  int rank = 0;                  // this one's
  std::vector<int> first_ranks;  // for each rank the first rank of its host (comm/hosts.h)
  std::string interface = "lo";  // between hosts
  std::chrono::nanoseconds limit = std::chrono::seconds(60);  // for all ranks to have met
};

// Called by all ranks at once. `store` is borrowed, and outlives the communicator. Throws Timeout where a rank
// does not come.
std::unique_ptr<comm::Communicator> make_of_hosts(rendezvous::Store& store, const OfHosts& hosts);

// "shared memory", "Gloo", "shared memory on each of 2 hosts, Gloo between them".
std::string describe_of_hosts(const std::vector<int>& first_ranks);

}  // namespace shoal::comm_c10d
