// SPDX-License-Identifier: Apache-2.0
// What every graph goes through last: views and copies that change nothing, repeated and dead nodes.
#pragma once

#include <span>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/pattern.h"

namespace shoal::rewrite {

// The local rules, in the order in which they are tried. All results keep their bits; the pictures are in
// cleanup.cpp.
std::span<const Rule> cleanup_rules();

// Rules, common subexpressions and dead code, until nothing changes. `counts`, if given, says how often each
// was applied. Takes the graph of one device: copies between devices that no node names a device for would be
// lost.
ir::Graph cleanup(ir::Graph graph, Counts* counts = nullptr);

}  // namespace shoal::rewrite
