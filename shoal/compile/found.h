// SPDX-License-Identifier: Apache-2.0
// The axes of a mesh whose placements nobody has said: they are found (planner/find.h) from the first captured
// step, and from then on are lines of the plan like others, which can be kept, read, changed and given again.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shoal/compile/plan.h"
#include "shoal/ir/graph.h"
#include "shoal/planner/find.h"
#include "shoal/rewrite/place.h"
#include "shoal/sharding/mesh.h"

namespace shoal::compile {

struct Settings;  // compile.h

// Those of several ranks that cut neither the batch nor the model into stages, and that no line names, or one says
// to find; outer to inner.
std::vector<std::size_t> axes_to_find(const Plan& plan, const sharding::Mesh& mesh);
std::string text_of_axes(const Plan& plan, const sharding::Mesh& mesh);  // "axis 'tensor' of '…' has 2 ranks"
int ranks_to_split(const Plan& plan, const sharding::Mesh& mesh);  // of these axes together; 1: there is none

// How the graph's nodes run on those axes, and a line in `plan` for each parameter: as many axes together as find()
// takes, the innermost first, and then the others of what those leave. Where that is settled, parameters lie as the
// lines say since an earlier graph, and those that no line names are whole. State in 8 bits keeps its blocks whole.
// With a budget, of each search, the first rank searches, and tells the others.
std::vector<planner::Found> find_placements(const ir::Graph& graph, const sharding::Mesh& mesh,
                                            const Settings& settings, Plan& plan);

}  // namespace shoal::compile
