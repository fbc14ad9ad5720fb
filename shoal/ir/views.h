// SPDX-License-Identifier: Apache-2.0
// Which ops hand out memory of their argument instead of memory of their own.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::ir {

// True if an output of the op may share memory with its first tensor argument. Ops outside aten:: and shoal::
// are taken to do so.
bool is_view(std::string_view op);

// For each value, by index, the value whose memory it may share: itself, or through views an earlier value.
std::vector<ValueId> memory_owners(const Graph& graph);

}  // namespace shoal::ir
