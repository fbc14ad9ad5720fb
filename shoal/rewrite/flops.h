// SPDX-License-Identifier: Apache-2.0
// How much work an op is.
#pragma once

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// Of matrix products, attention, convolutions and LSTM layers, forward and backward, a multiplication and an
// addition being two; 0 for other ops.
double flops_of(const ir::Graph& graph, const ir::Node& node);

}  // namespace shoal::rewrite
