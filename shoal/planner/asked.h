// SPDX-License-Identifier: Apache-2.0
// The latest few answers of find(), kept: ranks that are threads ask the same at the same time, and one of them
// searches.
#pragma once

#include <functional>

#include "shoal/ir/graph.h"
#include "shoal/planner/find.h"
#include "shoal/sharding/mesh.h"

namespace shoal::planner {

// What `search` finds, or has found for the same question. What it throws everybody who waits for it gets, and who asks
// later searches again.
Found asked(const ir::Graph& graph, const sharding::Mesh& mesh, const Question& question,
            const std::function<Found()>& search);

}  // namespace shoal::planner
