// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/parallelism.h"

#include "shoal/compile/pins.h"

namespace shoal {

sharding::Mesh mesh_of(int ranks, int replicate, int shard, int tensor, int pipeline) {
  std::vector<sharding::Axis> axes = {{"replicate", replicate}, {"shard", shard}, {"tensor", tensor}};
  if (pipeline != 1) axes.insert(axes.begin(), {compile::Plan().pipeline_axis, pipeline});
  return compile::mesh_of(axes, ranks);
}

sharding::Range samples_of(const sharding::Mesh& mesh, int rank, std::int64_t size,
                           const compile::Plan& plan) {
  return compile::samples_of(plan, mesh, rank, size);
}

}  // namespace shoal
