// SPDX-License-Identifier: Apache-2.0
// The programs of all ranks as tasks: what a step would take. Ranks that run the same in the same place are
// played once:
//
//   rank 0 compute   | mm | add |       . wait       | sgd |
//   rank 0 data             +-all_reduce-+            starts when all of its group have come to it,
//   rank 4 data             .    +-all_reduce-+       and ends for all of them at once
//
// Streams and what a task waits for are those of program::order_of: the simulator has no rule of its own.
// Where a cluster says that messages take longer beside what computes, each rank's do by what that rank
// computes; ranks of a group that run alike still end at once.
#pragma once

#include <vector>

#include "shoal/cost/cluster.h"
#include "shoal/program/runs.h"
#include "shoal/sharding/mesh.h"
#include "shoal/simulate/play.h"

namespace shoal::simulate {

using program::Run;

// Ranks that run alike.
struct Ranks {
  std::vector<int> ranks;   // in order
  std::vector<Run> runs;    // in order
  std::int64_t memory = 0;  // bytes of each beside what its programs have
};

// All segments of a program.
void append_runs(std::vector<Run>& runs, const program::Program& program, int microbatch);

// Kinds of Ranks are split further where devices differ, or what lies between them. Throws InvalidInput where the
// cluster has fewer devices than the mesh has ranks, and Internal where ranks of a group do not call alike.
Tasks tasks_of(const std::vector<Ranks>& kinds, const sharding::Mesh& mesh, const cost::Cluster& cluster);

}  // namespace shoal::simulate
