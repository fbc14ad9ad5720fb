// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/parallelism.h"

#include "shoal/compile/pins.h"

namespace shoal {

sharding::Mesh mesh_of(int ranks, int replicate, int shard, int tensor) {
  return compile::mesh_of({{"replicate", replicate}, {"shard", shard}, {"tensor", tensor}}, ranks);
}

sharding::Range samples_of(const sharding::Mesh& mesh, int rank, std::int64_t size,
                           const compile::Plan& plan) {
  return compile::samples_of(plan, mesh, rank, size);
}

}  // namespace shoal
