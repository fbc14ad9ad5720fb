// SPDX-License-Identifier: Apache-2.0
// The parameter servers of a job: processes that `shoal train` starts beside the ranks, each with loops of its own
// (ps/server.h). Where they listen is in the job's store, under ps/server/N.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shoal/cli/recipe.h"
#include "shoal/elastic/join.h"
#include "shoal/ps/tables.h"

namespace shoal::cli {

// How many servers, and on how many of them each row is. Two servers or more may have copies.
struct PsServers {
  int servers = 1;
  int copies = 1;
};
inline bool have_copies(const PsServers& servers) { return servers.servers > 1 && servers.copies > 1; }

inline PsServers ps_servers_of(const Recipe& recipe) {
  return {.servers = static_cast<int>(recipe.ps.servers), .copies = static_cast<int>(recipe.ps.copies)};
}

// The tables on so many servers, as one worker sees them. Throws Timeout naming a server that has not come.
std::unique_ptr<ps::Tables> tables_on_servers(elastic::Job& job, const PsServers& servers);

struct PsServe {
  int threads = 1;
  int copies = 1;  // of each row, if there are servers enough
};
void check(PsServe& options);
// Serves until it is ended: the process of one server of the job that the environment is of.
int ps_serve(const PsServe& options);

}  // namespace shoal::cli
