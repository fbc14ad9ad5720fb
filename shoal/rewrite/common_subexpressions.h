// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shoal/ir/graph.h"
#include "shoal/rewrite/pattern.h"

namespace shoal::rewrite {

// Lets one node stand for others that compute the same, where that costs no memory; counts "common
// subexpression". The duplicates stay as dead code. Linear.
ir::Graph merge_common_subexpressions(ir::Graph graph, Counts& counts);

}  // namespace shoal::rewrite
