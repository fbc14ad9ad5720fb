// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "shoal/base/error.h"
#include "shoal/elastic/launcher.h"

namespace shoal::elastic {

static constexpr int kMostRanks = 1024;

void check(const Launch& launch) {
  const auto wanted = [](bool holds, std::string_view flag, const auto& got, std::string_view wants) {
    SHOAL_CHECK(holds, InvalidInput, "run: ", flag, " is ", got, ", wanted ", wants);
  };
  SHOAL_CHECK(!launch.command.empty(), InvalidInput, "run: no program; write it after the options");
  wanted(launch.ranks >= 1 && launch.ranks <= kMostRanks, "--nproc-per-node", launch.ranks,
         concat("1 to ", kMostRanks));
  wanted(launch.num_hosts >= 1, "--nnodes", launch.num_hosts, "at least 1");
  wanted(launch.host >= 0 && launch.host < launch.num_hosts, "--node-rank", launch.host,
         concat("0 to --nnodes - 1, which is ", launch.num_hosts - 1));
  wanted(launch.master_port >= 0 && launch.master_port <= 65535, "--master-port", launch.master_port,
         "0 to 65535");
  wanted(launch.max_restarts >= 0, "--max-restarts", launch.max_restarts, "at least 0");
  wanted(launch.limit.count() >= 1, "--limit", launch.limit.count(), "at least 1 second");
  if (launch.num_hosts == 1) return;
  SHOAL_CHECK(launch.master_port != 0, InvalidInput,
              "run: with several hosts --master-port has to be given, the same on all of them");
  SHOAL_CHECK(!launch.key_file.empty(), InvalidInput,
              "run: with several hosts --key-file has to be given: a file "
              "with the same 32 random bytes on each host, mode 0600");
}

}  // namespace shoal::elastic
