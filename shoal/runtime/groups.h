// SPDX-License-Identifier: Apache-2.0
// The communicators of a mesh: one of all ranks, and for each axis one of the ranks that differ along it
// alone.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "shoal/comm/communicator.h"
#include "shoal/sharding/mesh.h"

namespace shoal::runtime {

inline constexpr std::chrono::seconds kDefaultLimit{300};

struct Group {
  comm::Communicator* communicator = nullptr;  // borrowed
  std::chrono::nanoseconds limit = kDefaultLimit;

  int rank() const { return communicator->rank(); }
  int size() const { return communicator->size(); }
};

class Groups {
 public:
  // Called by all ranks of `world` at once; borrows it. Throws InvalidInput where the mesh has another number
  // of ranks. `limit`: how long a collective waits for other ranks.
  Groups(const sharding::Mesh& mesh, comm::Communicator& world,
         std::chrono::nanoseconds limit = kDefaultLimit);

  const Group& world() const { return world_; }
  const Group& along(std::string_view axis) const;  // throws Internal for an axis that is not there
  const sharding::Mesh& mesh() const { return mesh_; }

 private:
  sharding::Mesh mesh_;
  Group world_;
  std::map<std::string, Group, std::less<>> by_axis_;
  std::vector<std::unique_ptr<comm::Communicator>> owned_;
};

}  // namespace shoal::runtime
