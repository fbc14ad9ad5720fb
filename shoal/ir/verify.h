// SPDX-License-Identifier: Apache-2.0
// Says whether a graph is what its form promises. Run after capture, after every rewrite, and on text from
// outside.
#pragma once

#include "shoal/base/error.h"
#include "shoal/ir/graph.h"

namespace shoal::ir {

// Throws an Error of that kind naming node, op and value at the first promise that is broken: Internal for a
// graph that Shoal made, InvalidInput for one that a person wrote. Linear in the size of the graph.
void verify(const Graph& graph, ErrorKind kind = ErrorKind::Internal);

}  // namespace shoal::ir
