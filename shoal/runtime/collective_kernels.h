// SPDX-License-Identifier: Apache-2.0
// Kernels of the messages of sharding/collective.h: one call of a communicator each.
#pragma once

#include <memory>

#include "shoal/comm/communicator.h"
#include "shoal/runtime/groups.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// Throws InvalidInput where `groups` is null: the program is one of several ranks.
std::unique_ptr<Kernel> make_collective(const program::Program& program, const program::Compute& compute,
                                        const Groups* groups);

// Of the argument "combine".
comm::ReduceOp reduction_of(const program::Compute& compute);

}  // namespace shoal::runtime
