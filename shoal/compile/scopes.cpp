// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/scopes.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/compile/found.h"

namespace shoal::compile {

using sharding::Mesh;

static void check_stages(const ir::Scopes& scopes, const Mesh& mesh, const Plan& plan) {
  const int ranks = pipeline_ranks_of(plan, mesh), count = static_cast<int>(scopes.stages.size());
  const int each = mesh.size() / ranks;  // ranks of a stage
  for (const auto& stage : scopes.stages)
    SHOAL_CHECK(stage.devices == 0 || each % stage.devices == 0, InvalidInput, "replicate(", stage.devices,
                ") ", stage.where, ": each stage has ", each, each == 1 ? " rank" : " ranks", " of '",
                to_text(mesh),
                "', and stages of several sizes are not supported. Remedy: a number that divides ", each,
                ", or none");
  if (count == 1 && ranks == 1) return;  // all of it, on all ranks
  SHOAL_CHECK(ranks > 1, InvalidInput, "replicate() ", scopes.stages[1].where, " is the second of ", count,
              " stages, and no axis of '", to_text(mesh), "' is a pipeline ('", plan.pipeline_axis,
              "'). Remedy: a pipeline degree that divides ", count);
  const int wanted = num_stages_of(plan, mesh);
  SHOAL_CHECK(count == wanted, InvalidInput, "replicate() marks ", count, count == 1 ? " stage" : " stages",
              " (the last ", scopes.stages.back().where, "), and schedule ", plan.schedule, " on ", ranks,
              " ranks of '", plan.pipeline_axis, "' has ", wanted,
              ". Remedy: as many scopes as stages, or none: where stages begin is then found");
}

static void check_splits(const ir::Scopes& scopes, const Mesh& mesh, const Plan& plan,
                         std::string_view plan_name) {
  const int ranks = ranks_to_split(plan, mesh);
  const auto& first = scopes.splits.front();
  SHOAL_CHECK(ranks > 1, InvalidInput, "split(", first.devices, ") ", first.where, ": no axis of '",
              to_text(mesh), "' is there to split over: each cuts the batch or the model's stages, or ",
              plan_name, " says what lies how. Remedy: a tensor degree");
  for (const auto& split : scopes.splits)
    SHOAL_CHECK(split.devices == 0 || split.devices == ranks, InvalidInput, "split(", split.devices, ") ",
                split.where, ": ", text_of_axes(plan, mesh), ". Remedy: that number, or none");
}

void apply(const ir::Scopes& scopes, const Mesh& mesh, Plan& plan, std::string_view plan_name) {
  if (mesh.size() == 1) return;
  if (!scopes.stages.empty()) check_stages(scopes, mesh, plan);
  if (!scopes.splits.empty()) check_splits(scopes, mesh, plan, plan_name);
  for (const auto& split : scopes.splits)
    for (const std::string& parameter : split.parameters)
      if (std::ranges::find(plan.splits, parameter) == plan.splits.end()) plan.splits.push_back(parameter);
}

bool say_stages(const ir::Scopes* scopes, const Mesh& mesh, const Plan& plan) {
  return scopes != nullptr && !scopes->stages.empty() && pipeline_ranks_of(plan, mesh) > 1;
}

}  // namespace shoal::compile
