// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shoal/compile/compile.h"

namespace shoal::cli {

// What was found of an axis, or of several together, and why: each class of layers, how it lies, what that costs by kind,
// the next best and what it costs more; and of what the bound is. `found` is one of the whole's.
std::string found_text(const compile::Whole& whole, const planner::Found& found);

}  // namespace shoal::cli
