// SPDX-License-Identifier: Apache-2.0
// The parameter servers of a job: processes that `shoal train` starts beside the ranks, each with loops of its own
// (ps/server.h). Where they listen is in the job's store, under ps/server/N.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shoal/elastic/join.h"
#include "shoal/ps/tables.h"

namespace shoal::cli {

// The tables on so many servers, as one worker sees them. Throws Timeout naming a server that has not come.
std::unique_ptr<ps::Tables> tables_on_servers(elastic::Job& job, int servers);

struct PsServe {
  int threads = 1;
};
void check(PsServe& options);
// Serves until it is ended: the process of one server of the job that the environment is of.
int ps_serve(const PsServe& options);

}  // namespace shoal::cli
