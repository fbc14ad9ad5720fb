// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "shoal/cli/recipe.h"

namespace shoal::cli {

// The keys of the model that the config is of, which they borrow.
void append_model(std::vector<Option>& options, models::Config& config);

}  // namespace shoal::cli
