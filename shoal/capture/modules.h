// SPDX-License-Identifier: Apache-2.0
// Which module of the user's model a node belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::capture {

// "h.0.attn.weight" → "h.0.attn"
std::string owner_of(std::string_view parameter);

// Fills Node::module. `sequence` is by node: autograd's sequence number of the forward operator it was
// recorded for, or that made it run in backward.
void name_modules(ir::Graph& graph, const std::vector<std::uint64_t>& sequence);

}  // namespace shoal::capture
