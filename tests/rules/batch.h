// SPDX-License-Identifier: Apache-2.0
// Whether a step can run on parts of its batch: a walk along the graph that follows the cut of the inputs.
#pragma once

#include <string>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal {

// The nodes that read something cut and can neither run on it nor be decomposed, as text: what a partitioner
// would have to gather for. Inputs that have `rows` rows are cut along them; sums may become whole, which
// is an all-reduce, what is cut may not, but for truths: a mask of a byte a token, which models index by row.
std::vector<std::string> nodes_that_gather(ir::Graph graph, std::int64_t rows);

}  // namespace shoal
