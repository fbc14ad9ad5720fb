// SPDX-License-Identifier: Apache-2.0
// This process among the ranks of its job, and what a script says of how they train together.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "shoal/comm/communicator.h"
#include "shoal/elastic/join.h"
#include "shoal/sharding/mesh.h"
#include "shoal/train/parallelism.h"
#include "shoal/world/world.h"

namespace shoal::python {

// As a script says it: no ranks yet. See shoal::Parallelism.
struct Degrees : shoal::Degrees {
  compile::Plan plan;
  std::string plan_name = "plan";
  std::string offload_folder = {};
  double limit = 300;  // seconds

  sharding::Mesh mesh(int ranks) const;
  // null: of one rank.
  Parallelism with(const sharding::Mesh& mesh, comm::Communicator* world) const;
  std::chrono::nanoseconds wait() const;
};

elastic::Place this_place();

// The World of this process, made when it is first asked for. Who uses its communicator keeps the object.
py::object the_world(std::chrono::nanoseconds limit);

}  // namespace shoal::python
