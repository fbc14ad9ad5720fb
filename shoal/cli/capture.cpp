// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include "shoal/base/error.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/verbs.h"
#include "shoal/ir/text.h"

namespace shoal::cli {

int capture(const Recipe& recipe, const Options&) {
  const std::string text =
      ir::to_text(step_graph(recipe, hollow_model(recipe), recipe.training.local_batch_size));
  const bool is_whole =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  SHOAL_CHECK(is_whole, Infeasible, "cannot write the graph to standard output");
  return 0;
}

}  // namespace shoal::cli
