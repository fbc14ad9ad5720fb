// SPDX-License-Identifier: Apache-2.0
// What messages that go on beside what their ranks compute take, and what both take beside each other: they
// share cores, and memory.
#pragma once

#include <map>

#include "shoal/cli/calibration.h"
#include "shoal/comm/communicator.h"
#include "shoal/cost/cluster.h"
#include "shoal/sharding/collective.h"

namespace shoal::cli {

struct Overlap {
  // Messages by themselves, one right after the other, than rounds and bytes say.
  std::map<sharding::Collective, cost::Slower> slower;
  // Instead of seconds how many times as long: a kernel while messages are under way, and a message while kernels are.
  Sample kernel, message;
};

// Called by all ranks of `world`, whose links `cluster` has.
Overlap measured_overlap(const Peers& peers, comm::Communicator& world, const cost::Cluster& cluster);

}  // namespace shoal::cli
