// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/parts.h"

#include <ATen/ops/cat.h>

#include <vector>

#include "shoal/base/error.h"
#include "shoal/runtime/redistribution.h"
#include "shoal/sharding/redistribute.h"

namespace shoal::train {

using sharding::Change;
using sharding::Layout;
using sharding::Mesh;
using sharding::Shard;

at::Tensor whole_of(const Rank& rank, const at::Tensor& part, const Layout& layout, at::IntArrayRef shape) {
  const Mesh& mesh = rank.parallelism.mesh;
  at::Tensor tensor = part;
  Layout now = layout;
  for (const auto& step :
       sharding::redistribution(mesh, shape.vec(), part.element_size(), layout, sharding::replicated(mesh))) {
    const auto axis = static_cast<std::size_t>(step.axis);
    const auto& group = rank.groups.along(mesh.axes[axis].name);
    now.placements[axis] = step.to;
    if (step.change == Change::AllReduce) {
      tensor = tensor.clone(at::MemoryFormat::Contiguous);
      runtime::all_reduce(tensor, comm::ReduceOp::Sum, group);
    } else {
      SHOAL_CHECK(step.change == Change::AllGather, Internal,
                  "distribution: a value is gathered by gathers alone");
      const Shard shard = std::get<Shard>(step.from);
      const auto whole =
          local_shape(mesh, now, shape.vec(), rank.number)[static_cast<std::size_t>(shard.dim)];
      tensor = runtime::all_gather(tensor, {shard, whole}, group);
    }
  }
  return tensor;
}

at::Tensor part_of(const Rank& rank, const at::Tensor& whole, const Layout& layout) {
  const auto box = sharding::box_of(rank.parallelism.mesh, layout, whole.sizes().vec(), rank.number);
  at::Tensor part = whole;
  for (std::size_t i = 0; i < box.dims.size(); ++i) {
    const auto dim = static_cast<std::int64_t>(i);
    std::vector<at::Tensor> pieces = {part.narrow(dim, 0, 0)};
    for (const auto& [begin, end] : box.dims[i]) pieces.push_back(part.narrow(dim, begin, end - begin));
    if (box.dims[i].size() == 1 && pieces[1].size(dim) == part.size(dim)) continue;
    part = pieces.size() == 2 ? pieces[1] : at::cat(pieces, dim);
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

}  // namespace shoal::train
