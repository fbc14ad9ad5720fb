// SPDX-License-Identifier: Apache-2.0
// How one model is trained by several ranks. Every rank has a Trainer of the same model and calls it alike,
// with its part of each batch.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/comm/communicator.h"
#include "shoal/rewrite/plan.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal {

struct Parallelism {
  // Axes `replicate` and `shard` cut the batch; parameters, gradients and optimizer state are stored in parts
  // over `shard`, as far as zero_stage says; `tensor` is the plan's.
  sharding::Mesh mesh;
  comm::Communicator* world = nullptr;  // all ranks of the mesh; borrowed
  // What the ranks of `shard` keep in parts: 0 nothing, 1 the optimizer's state, 2 gradients too, 3
  // parameters too (Rajbhandari et al., arXiv:1910.02054). -1: 3 where `shard` has more than one rank.
  int zero_stage = -1;
  rewrite::Plan plan = {};
  std::string plan_name = "plan";                   // for messages
  std::vector<std::string> replicated_inputs = {};  // of the batch: the same on every rank, not cut by dim 0
  std::map<std::string, int> batch_dims = {};       // of its items: where samples lie, if not in dim 0
  bool gathers_again = true;  // ZeRO-3: parameters for backward, instead of keeping them
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  // gradients are reduced when so many bytes are there
  std::chrono::nanoseconds limit = std::chrono::seconds{300};  // of every wait for another rank
};

// The mesh of these degrees, outer to inner: replicate, shard, tensor. One degree may be -1: what is left of
// the ranks. Throws InvalidInput where they do not multiply to the number of ranks, and says which would.
sharding::Mesh mesh_of(int ranks, int replicate, int shard, int tensor);

// Which samples of a batch of `size` a rank is to be given.
sharding::Range samples_of(const sharding::Mesh& mesh, int rank, std::int64_t size);

}  // namespace shoal
