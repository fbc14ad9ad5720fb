// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shoal/compile/compile.h"

namespace shoal::cli {

// What was found of an axis, and why: each class of layers, how it lies, what that costs by kind, the next best and what
// it costs more. `found` is one of the whole's.
std::string found_text(const compile::Whole& whole, const planner::Found& found);

}  // namespace shoal::cli
