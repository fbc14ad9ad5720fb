// SPDX-License-Identifier: Apache-2.0
// How one model is trained by several ranks. Every rank has a Trainer of the same model and calls it alike,
// with its part of each batch.
//
// On an axis `pipeline` each rank has a stage of the model, which is cut at the first step: ranks of other
// stages then have none of its parameters. A step's batch is cut into micro-batches (Plan::microbatches), as
// if it were given by step_over.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "shoal/comm/communicator.h"
#include "shoal/compile/plan.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal {

struct Parallelism {
  sharding::Mesh mesh;  // of all ranks: mesh_of()
  // All ranks of the mesh; borrowed. Its buffers are in main memory. null: one device, by itself.
  comm::Communicator* world = nullptr;
  // Likewise, of buffers where the model is: NCCL's (comm_c10d/nccl.h) for one on a device. What ranks only
  // tell each other goes through `world` all the same. null: `world`, for a model in main memory.
  comm::Communicator* tensors = nullptr;
  // What the axes are for: which cut the batch, over which the optimizer's state, gradients and parameters
  // are kept in parts, and what the others cut.
  compile::Plan plan = {};
  std::string plan_name = "plan";  // for messages
  // Where the files are that plan.offload speaks of: on a disk. "": /var/tmp.
  std::string offload_folder = {};
  std::chrono::nanoseconds limit = std::chrono::seconds{300};  // of every wait for another rank
};

// The mesh of these degrees, outer to inner: pipeline (where it is not 1), replicate, shard, tensor. One degree
// may be -1: what is left of the ranks. Throws InvalidInput where they do not multiply to the number of ranks,
// and says which would.
sharding::Mesh mesh_of(int ranks, int replicate, int shard, int tensor, int pipeline = 1);

// Which samples of a batch of `size`, all ranks together, a rank is to be given: from begin up to end. Ranks
// of an axis that does not cut the batch are given the same.
sharding::Range samples_of(const sharding::Mesh& mesh, int rank, std::int64_t size,
                           const compile::Plan& plan = {});

}  // namespace shoal
