// SPDX-License-Identifier: Apache-2.0
// shoal plan --diff A B: one recipe's step by two plans.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/cli/planned_step.h"
#include "shoal/cli/played_step.h"
#include "shoal/cli/prediction.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/plan.h"
#include "shoal/observe/summary.h"
#include "shoal/rewrite/report_diff.h"

namespace shoal::cli {

static constexpr std::string_view kFound = "found";

static bool is_plan_option(const std::string& word) { return word.starts_with("--parallelism.plan="); }

std::vector<Recipe> recipes_of(const Recipe& recipe, const Options& options) {
  const std::vector<std::string>& names = options.diff;
  if (names.empty()) return {recipe};
  SHOAL_CHECK(names.size() == 2, InvalidInput, "--diff compares two plans, and there is only ", names[0],
              ". Remedy: a second file, or the word ", kFound);
  SHOAL_CHECK(std::ranges::none_of(options.words, is_plan_option), InvalidInput,
              "--plan is not for --diff, which names both plans");
  for (const auto& [option, is_said] : {std::pair("--dry-run", options.dry_run),
                                        {"--measure", options.measure},
                                        {"--picture", !options.picture.empty()},
                                        {"--print-after", !options.print_after.empty()},
                                        {"--save-plan", !options.save_plan.empty()}})
    SHOAL_CHECK(!is_said, InvalidInput, option, " is of one plan, and --diff compares two. Remedy: without ",
                option, ", or by itself with --plan");
  std::vector<Recipe> recipes;
  for (const std::string& name : names) {
    SHOAL_CHECK(name == kFound || std::filesystem::is_regular_file(name), InvalidInput,
                "--diff: there is no file ", name, "; a plan is a file, or the word ", kFound);
    recipes.push_back(recipe);
    recipes.back().parallelism.plan = name == kFound ? "" : name;
  }
  return recipes;
}

// Lines that place nothing, which the layers show anyway.
static std::vector<std::string> settings_in(compile::Plan plan) {
  plan.mesh.clear();
  plan.lines.clear();
  plan.found_axes.clear();
  std::istringstream text(to_text(plan));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

static rewrite::ComparedPlan compared(const std::string& name, const PlannedStep& step) {
  const compile::Whole& whole = step.whole();
  rewrite::ComparedPlan plan{.name = name,
                             .mesh = whole.mesh,
                             .report = step.step_report(),
                             .settings = settings_in(whole.plan),
                             .memory = step.most([](const rewrite::RankClass&, const Forecast&) {}).bytes,
                             .seconds = {}};
  // What servers take is not priced.
  if (const Recipe& recipe = step.recipe(); !recipe.profiling.cluster.empty() && recipe.tables.empty()) {
    const PlayedStep played = play_step(recipe, cluster_of(recipe), whole.mesh.size());
    plan.seconds = static_cast<double>(played.nanoseconds()) / 1e9;
  }
  return plan;
}

int plan_diff(const Recipe& given, const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Recipe> recipes = recipes_of(given, options);
  std::vector<rewrite::ComparedPlan> plans;
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    const PlannedStep step(recipes[i], options.ranks);
    if (i == 0)
      say(concat("model: ", given.model.name, ", ", observe::with_commas(step.elements()), " parameters"));
    if (!step.choice().empty()) say(concat(i == 0 ? "A: " : "B: ", step.choice()));
    plans.push_back(compared(options.diff[i], step));
  }
  const std::string text = rewrite::diff_text(plans[0], plans[1]);
  say(text.substr(0, text.size() - 1));
  say_took("planned", begin);
  return 0;
}

}  // namespace shoal::cli
