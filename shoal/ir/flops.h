// SPDX-License-Identifier: Apache-2.0
// How much work an op is.
#pragma once

#include <functional>
#include <optional>

#include "shoal/ir/graph.h"

namespace shoal::ir {

// Of matrix products, attention, convolutions and LSTM layers, forward and backward, a multiplication and an
// addition being two; 0 for ops that go over elements, or move them. Nothing for an op that no table names.
// `type_of`: of what it reads and makes.
using TypeOf = std::function<const TensorType&(ValueId)>;
std::optional<double> work_of(const Node& node, const TypeOf& type_of);
std::optional<double> work_of(const Graph& graph, const Node& node);

// Of attention: heads of samples that it goes over, in backward 2.5 times as many, as there its work is. 0 for other ops.
double heads_of(const Node& node, const TypeOf& type_of);

// 0 where nothing is known; a report names such ops.
double flops_of(const Graph& graph, const Node& node);

}  // namespace shoal::ir
