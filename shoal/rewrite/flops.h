// SPDX-License-Identifier: Apache-2.0
// How much work an op is.
#pragma once

#include <optional>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// Of matrix products, attention, convolutions and LSTM layers, forward and backward, a multiplication and an
// addition being two; 0 for ops that go over elements, or move them. Nothing for an op that no table names.
std::optional<double> work_of(const ir::Graph& graph, const ir::Node& node);

// 0 where nothing is known; a report names such ops.
double flops_of(const ir::Graph& graph, const ir::Node& node);

}  // namespace shoal::rewrite
