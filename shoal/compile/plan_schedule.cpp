// SPDX-License-Identifier: Apache-2.0
// The schedule of a plan's pipeline: one by name, or what a file says.
#include <string>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/compile/plan.h"
#include "shoal/compile/plan_words.h"
#include "shoal/schedule/csv.h"

namespace shoal::compile {

using schedule::Timeline;
using sharding::Axis;
using sharding::Mesh;

static bool is_file(const Plan& plan) { return plan.schedule.ends_with(".csv"); }

void set_actions(Plan& plan, std::string_view rows, std::string_view name) {
  if (rows.empty()) return;
  SHOAL_CHECK(is_file(plan), InvalidInput, name, ": lines 'actions' are of a schedule that has a file, and '",
              plan.schedule, "' is one by name. Remedy: 'pipeline ", plan.pipeline_axis,
              " schedule=NAME.csv', or no such lines");
  Timeline timeline = schedule::from_csv(rows, plan.schedule, plan.microbatches);
  if (const auto fault = fault_of_order(timeline))
    fail(ErrorKind::InvalidInput, "schedule ", plan.schedule, ": ", to_text(*fault, timeline));
  plan.actions = std::move(timeline);
}

void read_schedule(Plan& plan) {
  if (!is_file(plan) || plan.actions) return;
  SHOAL_CHECK(plan.schedule.find_first_of(" \t#") == std::string::npos, InvalidInput, "schedule: the path ",
              in_quotes(plan.schedule),
              " has a blank or a '#', which a plan's line cannot say. Remedy: another name");
  DiskFileSystem files;
  SHOAL_CHECK(files.exists(plan.schedule), InvalidInput, "schedule: there is no file ", plan.schedule);
  const std::string rows = read_text(files, plan.schedule);
  SHOAL_CHECK(!rows.empty(), InvalidInput, "schedule ", plan.schedule, ": it has no row");
  set_actions(plan, rows, plan.schedule);
}

int pipeline_ranks_of(const Plan& plan, const Mesh& mesh) {
  for (const Axis& axis : mesh.axes)
    if (axis.name == plan.pipeline_axis) return axis.size;
  return 1;
}

// Those of the file, for so many ranks.
static const Timeline& actions_of(const Plan& plan, int ranks) {
  SHOAL_CHECK(plan.actions, InvalidInput, "schedule ", plan.schedule,
              ": the file has not been read (compile::read_schedule)");
  SHOAL_CHECK(plan.actions->num_ranks() == ranks, InvalidInput, "schedule ", plan.schedule, ": it has ",
              plan.actions->num_ranks(), plan.actions->num_ranks() == 1 ? " row" : " rows",
              ", one a rank, and axis '", plan.pipeline_axis, "' has ", ranks,
              " ranks. Remedy: a pipeline degree of ", plan.actions->num_ranks(), ", or another file");
  SHOAL_CHECK(plan.stages_per_rank == 0, InvalidInput, "schedule ", plan.schedule,
              ": it says which stages a rank has, and stages_per_rank is ", plan.stages_per_rank,
              "; leave that out");
  return *plan.actions;
}

std::vector<int> ranks_of_stages(const Plan& plan, const Mesh& mesh) {
  const int ranks = pipeline_ranks_of(plan, mesh);
  if (ranks == 1) return {0};
  return is_file(plan) ? actions_of(plan, ranks).rank_of_stage : timeline_of(plan, ranks, 1).rank_of_stage;
}

int num_stages_of(const Plan& plan, const Mesh& mesh) {
  return static_cast<int>(ranks_of_stages(plan, mesh).size());
}

int microbatches_of(const Plan& plan, const Mesh& mesh) {
  if (plan.microbatches != 0) return plan.microbatches;
  return plan.actions ? plan.actions->num_microbatches() : num_stages_of(plan, mesh);
}

Timeline timeline_of(const Plan& plan, int ranks, int microbatches) {
  if (!is_file(plan)) return schedule::named(plan.schedule).build(ranks, microbatches, plan.stages_per_rank);
  return with_microbatches(actions_of(plan, ranks), microbatches, plan.schedule);
}

bool splits_backward(const Plan& plan) {
  return plan.actions ? schedule::splits_backward(*plan.actions)
                      : schedule::named(plan.schedule).splits_backward;
}

}  // namespace shoal::compile
