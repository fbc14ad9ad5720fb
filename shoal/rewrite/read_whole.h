// SPDX-License-Identifier: Apache-2.0
// A parameter that something but lookups reads is looked up whole, row by row:
//
//   %4 = mm(%x, %w)               %2 = arange(R), %3 = embedding(weight=%w, indices=%2): all rows, %4 = mm(%x, %3)
//   return gradient "w" %9   ─►   %10 = embedding_dense_backward(%9, %2), return gradient "w" %10
//
// A row is what stands at one index of the first dim; a parameter of one dim is one row. In the graph it has two dims
// then.
#pragma once

#include <string>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// Of a captured graph: those of these parameters. One that lookups alone read, or a bag, stays as it is. Throws
// InvalidInput naming parameter, op and module where all rows are more than there is memory for.
ir::Graph read_whole(ir::Graph graph, const std::vector<std::string>& parameters);

}  // namespace shoal::rewrite
