// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shoal/ir/graph.h"
#include "shoal/rewrite/pattern.h"

namespace shoal::rewrite {

// Removes what no result depends on, and counts it as "dead code": nodes, and constants (all other sources
// are the step's signature). Nodes without outputs stay: they are there to check something. Linear.
ir::Graph remove_dead_code(ir::Graph graph, Counts& counts);

}  // namespace shoal::rewrite
