// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shoal/cli/recipe.h"

namespace shoal::cli {

// What one key alone cannot tell. Throws InvalidInput that begins with `path`.
void check_together(const Recipe& recipe, const std::string& path);

}  // namespace shoal::cli
