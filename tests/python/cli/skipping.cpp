// SPDX-License-Identifier: Apache-2.0
// The command `shoal` with a rank that leaves out a message, which no option of it does: linked so that what asks
// for the job's communicator comes here (cmake/programs.cmake). Only ranks of the first attempt have the fault.
//
//   SKIP=1:40      rank 1 leaves out its 40th message with a tag, counted from 0
//   SKIP_GLOO=1    ranks of one host talk by Gloo too
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "shoal/comm/skipping_test.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/elastic/join.h"

using shoal::comm::Communicator;
using shoal::elastic::Job;

// Job::recorded, as its callers and as its own file know it.
std::unique_ptr<Communicator> asked(Job* job,
                                    std::unique_ptr<Communicator> ranks) asm("__wrap_" SHOAL_RECORDED);
std::unique_ptr<Communicator> made(Job* job,
                                   std::unique_ptr<Communicator> ranks) asm("__real_" SHOAL_RECORDED);

std::unique_ptr<Communicator> asked(Job* job, std::unique_ptr<Communicator> ranks) {
  const auto [rank, size, local_rank, local_size, starter] = job->place();
  if (std::getenv("SKIP_GLOO") != nullptr)
    ranks = shoal::comm_c10d::make_gloo(job->store(), {.name = "all", .rank = rank, .size = size});
  ranks = made(job, std::move(ranks));
  const char* skip = std::getenv("SKIP");
  int who = 0, send = 0;
  if (skip == nullptr || std::sscanf(skip, "%d:%d", &who, &send) != 2) return ranks;
  if (who != rank || job->attempt() != 0) return ranks;
  return std::make_unique<shoal::comm::Skipping>(std::move(ranks), std::make_shared<int>(send));
}
