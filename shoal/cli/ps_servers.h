// SPDX-License-Identifier: Apache-2.0
// The parameter servers of a job: processes that `shoal train` starts beside the ranks, each with loops of its own
// (ps/server.h). Where they listen is in the job's store, under ps/server/N.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "shoal/cli/recipe.h"
#include "shoal/elastic/join.h"
#include "shoal/ps/tables.h"

namespace shoal::cli {

// How many servers there are at first, and on how many each row is wanted.
struct PsServers {
  int servers = 1;
  int copies = 1;
  int parts = 1;  // of the keys
};

inline PsServers ps_servers_of(const Recipe& recipe) {
  return {.servers = static_cast<int>(recipe.ps.servers),
          .copies = static_cast<int>(recipe.ps.copies),
          .parts = static_cast<int>(std::max(recipe.ps.parts, recipe.ps.servers * recipe.ps.threads))};
}

// The tables on so many servers, as one worker sees them. Throws Timeout naming a server that has not come.
std::unique_ptr<ps::Tables> tables_on_servers(elastic::Job& job, const PsServers& servers);

struct PsServe {
  int threads = 1;
};
void check(PsServe& options);
// Serves until it is ended by a signal, or has left the job: the process of one server of the job that the environment
// is of.
int ps_serve(const PsServe& options);

}  // namespace shoal::cli
