// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm_c10d/of_hosts.h"

#include <utility>

#include "shoal/base/error.h"
#include "shoal/comm/hierarchy/hierarchy.h"
#include "shoal/comm/hierarchy/members.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/comm_c10d/gloo.h"

namespace shoal::comm_c10d {

static bool have_one_rank_each(const comm::HostMembers& members) {
  return members.num_hosts() == members.num_ranks();
}

std::string describe_of_hosts(const std::vector<int>& first_ranks) {
  const comm::HostMembers members(first_ranks);
  if (members.num_hosts() == 1) return "shared memory";
  if (have_one_rank_each(members)) return "Gloo";
  return concat("shared memory on each of ", members.num_hosts(), " hosts, Gloo between them");
}

std::unique_ptr<comm::Communicator> make_of_hosts(rendezvous::Store& store, const OfHosts& hosts) {
  const comm::HostMembers members(hosts.first_ranks);
  const int host = members.host_of(hosts.rank);
  const auto here = [&] {
    return comm::shm_communicator(
        store, members.place_of(hosts.rank), static_cast<int>(members.of(host).size()),
        {.job = host == 0 ? "job" : concat("job of host ", host), .limit = hosts.limit});
  };
  if (members.num_hosts() == 1) return here();
  auto between = make_gloo(store, {.name = "all",
                                   .rank = hosts.rank,
                                   .size = members.num_ranks(),
                                   .interface = hosts.interface,
                                   .limit = hosts.limit});
  if (have_one_rank_each(members)) return between;
  return comm::hierarchy(std::move(between), here(), hosts.first_ranks);
}

}  // namespace shoal::comm_c10d
