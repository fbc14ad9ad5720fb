// SPDX-License-Identifier: Apache-2.0
// shoal plan: what a recipe's step would be on a mesh of ranks. Nothing is trained, and the model has no
// memory, so that neither it nor the number of ranks has to fit this machine.
#include <chrono>
#include <cstdio>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/verbs.h"
#include "shoal/ir/verify.h"
#include "shoal/observe/summary.h"
#include "shoal/program/program.h"
#include "shoal/rewrite/partition.h"
#include "shoal/rewrite/place.h"
#include "shoal/rewrite/report.h"
#include "shoal/train/distribution.h"

namespace shoal::cli {

// Every kind of rank: what it would run, lowered as a rank does it.
static void dry_run(const rewrite::Placed& placed, const rewrite::PartitionOptions& options) {
  const auto classes = rewrite::rank_classes(placed);
  say(concat("dry run: ", placed.mesh.size(), " ranks of ", classes.size(), " kinds"));
  for (const auto& [first, count] : classes) {
    const ir::Graph local = rewrite::partition(placed, first, options);
    ir::verify(local);
    const program::Program program = program::lower(local);
    const rewrite::Memory memory = rewrite::memory_of(local);
    say(concat("  ", count, count == 1 ? " rank as rank " : " ranks as rank ", first, ": ",
               program.gradients.size() + program.update.size(), " instructions, ",
               human_bytes(memory.parameters + memory.gradients + memory.optimizer_state + memory.buffers),
               " between steps, ", human_bytes(memory.activations), " more in one"));
  }
}

int plan(const Recipe& recipe, const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const Parallelism parallelism = parallelism_of(recipe, options.ranks);
  const StepSizes sizes = sizes_of(recipe, parallelism.mesh);
  const torch::nn::AnyModule model = hollow_model(recipe);
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : model.ptr()->parameters()) elements += parameter.numel();
  ir::Graph graph = step_graph(recipe, model, sizes.microbatch);
  const rewrite::Pins pins = train::pins_of(parallelism, shapes_of(model), graph);
  say(concat("model: ", recipe.model.name, ", ", observe::with_commas(elements), " parameters; ",
             observe::with_commas(static_cast<std::int64_t>(graph.nodes.size())), " ops for ",
             sizes.microbatch, " samples at once"));
  const rewrite::Placed placed = rewrite::place(std::move(graph), parallelism.mesh, pins);
  const rewrite::PartitionOptions buckets = {.bucket_bytes = parallelism.bucket_bytes};
  const std::string text = rewrite::to_text(
      parallelism.mesh, rewrite::report_of(placed, rewrite::partition(placed, 0, buckets), 0));
  say(text.substr(0, text.size() - 1));
  if (options.dry_run) dry_run(placed, buckets);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  char took[64];
  std::snprintf(took, sizeof took, "planned in %.1f s, ", seconds.count());
  say(concat(took, human_bytes(observe::peak_memory_bytes()), " of memory"));
  return 0;
}

}  // namespace shoal::cli
