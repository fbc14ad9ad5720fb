// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include "shoal/base/error.h"
#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"
#include "shoal/ir/text.h"

namespace shoal::cli {

int capture(const Recipe& recipe, const Options&) {
  Learner learner = make_learner(recipe, nullptr);
  const std::string text =
      ir::to_text(learner.trainer.graph(example_batch(recipe, recipe.training.local_batch_size)));
  const bool is_whole =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  SHOAL_CHECK(is_whole, Infeasible, "cannot write the graph to standard output");
  return 0;
}

}  // namespace shoal::cli
