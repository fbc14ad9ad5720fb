// SPDX-License-Identifier: Apache-2.0
// Kernels of the ops that rewrite/partition.h puts between ranks.
#pragma once

#include <memory>

#include "shoal/runtime/groups.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

bool is_collective(const program::Compute& compute);

// Throws InvalidInput where `groups` is null: the program is one of several ranks.
std::unique_ptr<Kernel> make_collective(const program::Program& program, const program::Compute& compute,
                                        const Groups* groups);

// shoal::part(self, dim, outer, unit, index, count): what rank `index` of `count` keeps of a whole value.
std::unique_ptr<Kernel> make_part(const program::Program& program, const program::Compute& compute);

}  // namespace shoal::runtime
