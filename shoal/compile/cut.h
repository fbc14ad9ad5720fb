// SPDX-License-Identifier: Apache-2.0
// Where a pipeline's graph is cut, by who says so: the program's scopes, the plan's lines, the graphs before it, or
// nobody.
#pragma once

#include <span>
#include <utility>

#include "shoal/compile/compile.h"
#include "shoal/compile/update.h"
#include "shoal/ir/graph.h"
#include "shoal/rewrite/stages.h"

namespace shoal::compile {

// Throws InvalidInput where scopes and lines say different things, and as rewrite::assign_stages.
std::pair<ir::Graph, rewrite::Stages> cut(const Whole& whole);

// Throws InvalidInput naming a parameter that a stage alone keeps since the graphs before, and another one reads.
void check_owners(const rewrite::Stages& known, const rewrite::Stages& found,
                  std::span<const OptimizerPart> optimizers);

}  // namespace shoal::compile
