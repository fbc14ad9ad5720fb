// SPDX-License-Identifier: Apache-2.0
// What a program's own scopes say (ir/scopes.h), held against the plan and the mesh, and made part of the plan.
#pragma once

#include <string_view>

#include "shoal/compile/plan.h"
#include "shoal/ir/graph.h"
#include "shoal/ir/scopes.h"
#include "shoal/sharding/mesh.h"

namespace shoal::compile {

// Each parameter that is read in a split scope becomes a line 'split'. Throws InvalidInput, saying where, for a number
// of stages or devices that this mesh has not.
void apply(const ir::Scopes& scopes, const sharding::Mesh& mesh, Plan& plan,
           std::string_view plan_name = "plan");

// Whether the graph's stages are those of the scopes: there are several, and the mesh has a pipeline.
bool say_stages(const ir::Scopes* scopes, const sharding::Mesh& mesh, const Plan& plan);

}  // namespace shoal::compile
