// SPDX-License-Identifier: Apache-2.0
// Ops that need whole what a mesh wants to cut, written as several simpler ones that each have a rule
// (sharding/ops.cpp): averages as sums divided by the count of the whole, batch norm and softmax as their
// formulas.
//
//   a mean whose batch is cut
//   %1 : f32[] = aten::mean(self=%0)      |   %1 : f32[] = aten::sum.dim_IntList(self=%0, dim=[])
//                                         |   %2 : f32[] = aten::div.Scalar(self=%1, other=96.0)
//
// Counts are numbers of the whole graph, so a rank that has an uneven part, or none, needs no care.
#pragma once

#include <set>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

bool can_decompose(const ir::Graph& graph, const ir::Node& node);

// These nodes become several simpler ones, of the same phase and module; the results are equal up to
// rounding. Throws Internal for a node that can_decompose does not name. Value and node ids are new.
ir::Graph decompose(ir::Graph graph, const std::set<ir::NodeId>& nodes);

}  // namespace shoal::rewrite
