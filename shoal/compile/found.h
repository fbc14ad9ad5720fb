// SPDX-License-Identifier: Apache-2.0
// The axis of a mesh whose placements nobody has said: they are found (planner/find.h) from the first captured
// step, and from then on are lines of the plan like others, which can be kept, read, changed and given again.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "shoal/compile/plan.h"
#include "shoal/ir/graph.h"
#include "shoal/planner/find.h"
#include "shoal/rewrite/place.h"
#include "shoal/sharding/mesh.h"

namespace shoal::compile {

struct Settings;  // compile.h

// The one of several ranks that cuts neither the batch nor the model into stages, and that no line names, or one
// says to find. Throws InvalidInput where there are two.
std::optional<std::size_t> axis_to_find(const Plan& plan, const sharding::Mesh& mesh,
                                        std::string_view plan_name = "plan");

// How the graph's nodes run on that axis, and a line in `plan` for each parameter. Where that is settled, parameters lie
// as the lines say since an earlier graph, and those that no line names are whole. State in 8 bits keeps its blocks whole.
// With a budget the first rank searches, and tells the others.
planner::Found find_placements(const ir::Graph& graph, const sharding::Mesh& mesh, std::size_t axis,
                               const Settings& settings, Plan& plan);

}  // namespace shoal::compile
