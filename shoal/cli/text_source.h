// SPDX-License-Identifier: Apache-2.0
// The text of a recipe, parted and measured: what both text datasets start from.
#pragma once

#include <string>

#include "shoal/cli/recipe.h"
#include "shoal/data/corpus.h"

namespace shoal::cli {

struct TextSource {
  data::Split split;
  double trigram_bits_per_byte = 0;
  std::string description;
};

TextSource read_text(const Recipe& recipe);

}  // namespace shoal::cli
