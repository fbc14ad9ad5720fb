// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/cut.h"

#include <algorithm>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/compile/pins.h"
#include "shoal/compile/scopes.h"

namespace shoal::compile {

// What ranks keep between steps stays where it is.
static bool is_kept(const rewrite::Stages& known, const std::string& parameter, int owner) {
  const int before = known.owner_of(parameter);
  return before == owner || before == rewrite::Stages::kShared;
}

void check_owners(const rewrite::Stages& known, const rewrite::Stages& found,
                  std::span<const OptimizerPart> optimizers) {
  for (const auto& [parameter, owner] : found.owners) {
    if (is_kept(known, parameter, owner)) continue;
    const int before = known.owner_of(parameter);
    SHOAL_CHECK(!is_updated_whole(optimizers, parameter), InvalidInput,
                "pipeline: the optimizer of parameter ", parameter, " looks at whole tensors, and stage ",
                before, " alone keeps it since the steps before. Remedy: a new trainer, with this optimizer");
    fail(ErrorKind::InvalidInput, "pipeline: parameter ", parameter, " is read ",
         owner == rewrite::Stages::kShared ? "in several stages" : concat("in stage ", owner),
         " of this graph, and stage ", before,
         " alone keeps it since the graphs before. Remedy: give the trainer first what reads it in most "
         "stages");
  }
}

// Where the graphs before were cut; where that was found, and this one (another length, evaluation) has no such
// place or would move a parameter, at its own.
std::pair<ir::Graph, rewrite::Stages> cut(const Whole& whole) {
  const auto ranks = ranks_of_stages(whole.plan, whole.mesh);
  const auto* known = whole.settings.stages;
  if (say_stages(whole.settings.scopes, whole.mesh, whole.plan)) {
    auto marked = rewrite::assign_marked(whole.graph, ranks);
    const auto& begins = marked.second.begins;
    SHOAL_CHECK(whole.plan.stages.empty() || whole.plan.stages == begins, InvalidInput,
                whole.settings.plan_name, ": a stage is to begin at '", whole.plan.stages.front(),
                "', and the program's own scopes begin it at '", begins.front(),
                "'. Remedy: leave one of them out");
    return marked;
  }
  if (known == nullptr || !whole.plan.stages.empty())
    return rewrite::assign_stages(whole.graph, ranks, whole.plan.stages);
  try {
    auto as_before = rewrite::assign_stages(whole.graph, ranks, known->begins);
    if (std::ranges::all_of(as_before.second.owners,
                            [&](const auto& each) { return is_kept(*known, each.first, each.second); }))
      return as_before;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::InvalidInput) throw;
  }
  return rewrite::assign_stages(whole.graph, ranks, {});
}

}  // namespace shoal::compile
