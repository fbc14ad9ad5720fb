// SPDX-License-Identifier: Apache-2.0
// The second part of a backward: what leads to gradients of its stage alone, so that nobody waits for it. Of a linear
// layer in a stage that is not the first:
//
//   backward 1   %dx = mm(%dy, %w)       send(%dx)
//   weights 1    %dw = mm(%dy_t, %x)     gradient "w" %dw
#pragma once

#include <set>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::program {

// Of each of backward's nodes, in their order: whether no other rank, no other stage and no result but a gradient is
// reached from it. `stages`: this rank's.
std::vector<bool> find_weights_alone(const ir::Graph& graph, const std::vector<const ir::Node*>& backward,
                                     const std::set<int>& stages);

}  // namespace shoal::program
