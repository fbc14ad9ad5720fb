// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include "shoal/base/error.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/verbs.h"

namespace shoal::cli {

int capture(const Recipe& recipe, const Options& options) {
  const OptimizerPart part{{}, optimizer_of(recipe)};
  const std::string& move = options.print_after;  // of one device; else the whole step
  compile::Settings settings = settings_of(recipe, part, move.empty() ? "update" : move);
  std::string text;
  settings.print = [&](std::string_view after, const std::string& made) {
    text += (move == "all" ? concat("--- after ", after, '\n') : "") + made;
  };
  compile::compile(captured_step(recipe, hollow_model(recipe), recipe.training.local_batch_size).graph,
                   {.tables = table_specs(recipe)}, {}, 0, settings);
  const bool is_whole =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  SHOAL_CHECK(is_whole, Infeasible, "cannot write the graph to standard output");
  return 0;
}

}  // namespace shoal::cli
