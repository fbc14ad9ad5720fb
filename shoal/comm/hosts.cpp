// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/hosts.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "shoal/base/error.h"
#include "shoal/rendezvous/deadline.h"

namespace shoal::comm {

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  std::error_code error;
  const std::string processes = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  SHOAL_CHECK(!boot.empty() && !error, Infeasible,
              "comm: cannot tell which host this is: /proc is not there, or not this system's");
  return concat("boot ", boot, " ", processes, " user ", geteuid());
}

std::vector<int> first_ranks_of_hosts(const std::vector<std::string>& identities) {
  std::vector<int> first;
  for (const std::string& identity : identities)
    first.push_back(static_cast<int>(std::ranges::find(identities, identity) - identities.begin()));
  return first;
}

std::vector<int> first_ranks_of_hosts(rendezvous::Store& store, std::string_view key, int rank, int size,
                                      std::chrono::nanoseconds limit) {
  const rendezvous::Clock::time_point deadline = rendezvous::deadline_after(limit);
  store.set(concat(key, "/", rank), host_identity());
  std::vector<std::string> identities;
  for (int r = 0; r < size; ++r)
    identities.push_back(store.get(concat(key, "/", r), deadline - rendezvous::Clock::now()));
  return first_ranks_of_hosts(identities);
}

}  // namespace shoal::comm
