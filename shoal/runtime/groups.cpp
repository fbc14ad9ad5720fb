// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/groups.h"

#include "shoal/base/error.h"

namespace shoal::runtime {

Groups::Groups(const sharding::Mesh& mesh, comm::Communicator& world, std::chrono::nanoseconds limit)
    : mesh_(mesh), world_{&world, limit} {
  SHOAL_CHECK(mesh.size() == world.size(), InvalidInput, "mesh: '", to_text(mesh), "' has ", mesh.size(),
              " ranks, and this job ", world.size());
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const auto& [name, size] = mesh.axes[axis];
    if (size == 1) continue;
    Group group = world_;
    if (size != world.size()) {
      owned_.push_back(world.subgroup(mesh.group(world.rank(), {static_cast<int>(axis)})));
      group.communicator = owned_.back().get();
    }
    by_axis_.emplace(name, group);
  }
}

const Group& Groups::along(std::string_view axis) const {
  const auto found = by_axis_.find(axis);
  SHOAL_CHECK(found != by_axis_.end(), Internal, "groups: mesh '", to_text(mesh_), "' has no group along '",
              axis, "'");
  return found->second;
}

}  // namespace shoal::runtime
