// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/ranks.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/cli/device.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/found.h"
#include "shoal/compile/pins.h"
#include "shoal/cost/cluster.h"
#include "shoal/data/hash.h"
#include "shoal/rewrite/place.h"

namespace shoal::cli {

static sharding::Mesh mesh_of(const Recipe& recipe, const compile::Plan& plan, int ranks) {
  const auto& degrees = recipe.parallelism;
  const auto shard = static_cast<int>(degrees.data_parallel_shard_degree);
  const auto tensor = static_cast<int>(degrees.tensor_parallel_degree);
  const auto pipeline = static_cast<int>(degrees.pipeline_parallel_degree);
  auto replicate = static_cast<int>(degrees.data_parallel_replicate_degree);
  if (!plan.mesh.empty()) {
    SHOAL_CHECK(replicate == -1 && shard == 1 && tensor == 1 && pipeline == 1, InvalidInput, degrees.plan,
                " has a mesh, '", to_text(sharding::Mesh{plan.mesh}),
                "', and the recipe has degrees too (parallelism.*_degree); leave one of them out");
    return compile::mesh_of(plan.mesh, ranks);
  }
  // It is the rest unless another degree is asked to be.
  if (replicate == -1 && (shard == -1 || tensor == -1 || pipeline == -1)) replicate = 1;
  return shoal::mesh_of(ranks, replicate, shard, tensor, pipeline);
}

// As a plan's line has it.
static rewrite::Recompute recompute_of(const Recipe& recipe) {
  const auto& [mode, modules, bytes, collectives] = recipe.recompute;
  std::string words = concat(name_of(mode), ' ', modules);
  if (!bytes.empty()) words += concat(" bytes=", bytes);
  if (collectives) words += " collectives=again";
  return compile::recompute_from_text(words);
}

static rewrite::Offload offload_of(const Recipe& recipe) {
  const auto& [parameters, optimizer_state, gradients, activations, least, folder] = recipe.offload;
  std::string words;
  for (const auto& [goes, word] : {std::pair(parameters, "parameters "),
                                   {optimizer_state, "optimizer_state "},
                                   {gradients, "gradients "},
                                   {activations, "activations "}})
    if (goes) words += word;
  if (!least.empty()) words += concat("least=", least);
  return compile::offload_from_text(words);
}

static rewrite::Precision precision_of(const Recipe& recipe) {
  const auto& [compute, lower, full, scale, grows_after, master, reduce] = recipe.precision;
  std::string words = concat(compute, " reduce=", reduce);
  for (const auto& [key, ops] : {std::pair(" lower=", lower), std::pair(" full=", full)}) {
    std::istringstream each(ops);
    for (std::string op; each >> op;) words += key + op;
  }
  rewrite::Precision precision = compile::precision_from_text(words);
  precision.scale = scale;
  precision.grows_after = grows_after;
  precision.master = master;
  compile::check(precision);
  return precision;
}

static compile::Planner planner_of(const Recipe& recipe) {
  const auto& [tensor_batch, zero, kept, budget, cluster] = recipe.planner;
  std::string words = concat(tensor_batch ? "tensor_batch=true" : "", zero ? " zero=true" : "");
  if (!kept.empty()) words += concat(" kept=", kept);
  compile::Planner planner = compile::planner_from_text(words);
  planner.budget = budget;
  return planner;
}

// Of the outermost axis that is found, on these machines: of products of a size that layers have.
static planner::Rates rates_of(const Recipe& recipe, const Parallelism& parallelism, std::size_t axis) {
  constexpr double kFlops = 1e9, kBytes = 1e7;
  const sharding::Mesh& mesh = parallelism.mesh;
  const std::string& path = recipe.planner.cluster;
  DiskFileSystem files;
  const cost::Cluster cluster = cost::cluster_from_toml(read_text(files, path), path);
  SHOAL_CHECK(cluster.size() >= mesh.size(), InvalidInput, "planner.cluster: ", path, " has ", cluster.size(),
              " devices, and there are ", mesh.size(),
              " ranks. Remedy: fewer ranks, or the file of another cluster");
  const auto members = mesh.group(0, {static_cast<int>(axis)});
  const bool is_inside = std::ranges::all_of(
      members, [&](int rank) { return cluster.host_of(rank) == cluster.host_of(members.front()); });
  const cost::Link& link = is_inside ? cluster.inside : cluster.between;
  const cost::Kind& kind = cluster.kind_of(0);
  const DType dtype =
      recipe.training.dtype == FloatType::Float64 ? DType::Float64 : parallelism.plan.precision.compute;
  const auto arithmetic = kind.arithmetic.find(dtype);
  planner::Rates rates;
  if (arithmetic != kind.arithmetic.end()) rates.flops = kFlops / arithmetic->second.seconds(kFlops);
  rates.memory = kBytes / kind.bandwidth.seconds(kBytes);
  rates.link = link.bandwidth;
  rates.latency = link.latency;
  return rates;
}

static compile::Plan plan_of(const Recipe& recipe) {
  const std::string& path = recipe.parallelism.plan;
  compile::Plan plan;
  if (!path.empty()) {
    std::ifstream file(path, std::ios::binary);
    SHOAL_CHECK(file, InvalidInput, "parallelism.plan: there is no file ", path);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    plan = compile::plan_from_text(text, path);
  }
  const auto stage = static_cast<int>(recipe.zero.stage);
  SHOAL_CHECK(stage == -1 || plan.zero_stage == -1 || plan.zero_stage == stage, InvalidInput,
              "zero.stage is ", stage, " in the recipe and ", plan.zero_stage, " in ", path,
              "; leave one of them out");
  if (stage != -1) plan.zero_stage = stage;
  if (recipe.zero.gathers == Gathers::Once) plan.gathers_again = false;
  const rewrite::Recompute recompute = recompute_of(recipe), none;
  SHOAL_CHECK(recompute == none || plan.recompute == none, InvalidInput,
              "recompute is in the recipe, and in ", path, "; leave one of them out");
  if (recompute != none) plan.recompute = recompute;
  const rewrite::Offload offload = offload_of(recipe), nothing;
  SHOAL_CHECK(offload == nothing || plan.offload == nothing, InvalidInput,
              "offload is in the recipe, and in ", path, "; leave one of them out");
  if (offload != nothing) plan.offload = offload;
  const rewrite::Precision precision = precision_of(recipe);
  SHOAL_CHECK(precision == rewrite::Precision{} || plan.precision == rewrite::Precision{}, InvalidInput,
              "precision is in the recipe, and in ", path, "; leave one of them out");
  if (precision != rewrite::Precision{}) plan.precision = precision;
  const compile::Planner planner = planner_of(recipe), plain;
  SHOAL_CHECK(planner == plain || plan.planner == plain, InvalidInput, "planner is in the recipe, and in ",
              path, "; leave one of them out");
  if (planner != plain) plan.planner = planner;
  const auto& said = recipe.parallelism;
  if (!said.pipeline_parallel_schedule.empty()) {
    plan.schedule = said.pipeline_parallel_schedule;
    plan.actions.reset();
  }
  if (said.pipeline_parallel_stages_per_rank > 0)
    plan.stages_per_rank = static_cast<int>(said.pipeline_parallel_stages_per_rank);
  if (said.pipeline_parallel_microbatches > 0)
    plan.microbatches = static_cast<int>(said.pipeline_parallel_microbatches);
  compile::read_schedule(plan);
  for (auto& table : table_specs(recipe)) plan.tables.push_back(std::move(table));
  for (const Annotation& annotation : recipe.annotate) plan.splits.push_back(annotation.modules);
  return plan;
}

static void check_annotations(const Recipe& recipe, const Parallelism& parallelism) {
  const int ranks = compile::ranks_to_split(parallelism.plan, parallelism.mesh);
  for (const Annotation& annotation : recipe.annotate)
    SHOAL_CHECK(annotation.split == 0 || ranks == 1 || annotation.split == ranks, InvalidInput,
                "annotate: \"", annotation.modules, "\" is to be split over ", annotation.split, ", and ",
                compile::text_of_axes(parallelism.plan, parallelism.mesh), ". Remedy: that number, or none");
}

Parallelism parallelism_of(const Recipe& recipe, int ranks, bool overlaps) {
  Parallelism parallelism{.plan = plan_of(recipe)};
  if (overlaps) compile::resolve_overlap(parallelism.plan);
  parallelism.mesh = mesh_of(recipe, parallelism.plan, ranks);
  const int stage = compile::zero_stage_of(parallelism.plan, parallelism.mesh);
  SHOAL_CHECK(recipe.zero.gathers == Gathers::Again || stage == 3 || parallelism.plan.planner.zero ||
                  !parallelism.plan.zero_parts.empty(),
              InvalidInput, "zero.gathers is \"once\", and at ZeRO stage ", stage,
              " parameters are whole at all times. Remedy: zero.stage=3, or leave it out");
  if (!recipe.parallelism.plan.empty()) parallelism.plan_name = recipe.parallelism.plan;
  parallelism.offload_folder = recipe.offload.folder;
  if (!recipe.planner.cluster.empty())
    if (const auto axes = compile::axes_to_find(parallelism.plan, parallelism.mesh); !axes.empty())
      parallelism.plan.planner.rates = rates_of(recipe, parallelism, axes.front());
  return parallelism;
}

int data_ranks_of(const Parallelism& parallelism) {
  int ranks = 1;
  for (const sharding::Axis& axis : parallelism.mesh.axes)
    if (compile::is_batch_axis(parallelism.plan, axis.name)) ranks *= axis.size;
  return ranks;
}

StepSizes sizes_of(const Recipe& recipe, const Parallelism& parallelism) {
  const std::int64_t ranks = data_ranks_of(parallelism);
  const std::int64_t at_once = recipe.training.local_batch_size * ranks;
  const std::int64_t global =
      recipe.training.global_batch_size == -1 ? at_once : recipe.training.global_batch_size;
  const std::int64_t num = (global + at_once - 1) / at_once;
  SHOAL_CHECK(global >= ranks, InvalidInput, "training.global_batch_size is ", global, ", and the mesh '",
              to_text(parallelism.mesh), "' shares a batch among ", ranks,
              " ranks; it is at least that, or fewer ranks are on the axes that cut the batch");
  SHOAL_CHECK(num > 0 && global % num == 0 && global / num >= ranks, InvalidInput,
              "training.global_batch_size is ", global, ": ", num, " micro-batches of at most ", at_once,
              " samples (training.local_batch_size ", recipe.training.local_batch_size, " on each of ", ranks,
              " ranks) are not of one size; choose a multiple of ", num, ", or another local one");
  const auto stages = compile::num_stages_of(parallelism.plan, parallelism.mesh);
  if (stages == 1 || num > 1) return {.microbatch = global / num, .num_microbatches = num};
  // A pipeline cuts what it has at once.
  const std::int64_t wanted = parallelism.plan.microbatches;
  SHOAL_CHECK(wanted == 0 || global % (wanted * ranks) == 0, InvalidInput, "a step's batch of ", global,
              " samples cannot be cut into ", wanted, " micro-batches of one size on ", ranks,
              " ranks that share it (parallelism.pipeline_parallel_microbatches); choose a divisor of ",
              global / ranks);
  std::int64_t cuts = microbatches_of(parallelism.plan, parallelism.mesh);
  while (global % (cuts * ranks) != 0) --cuts;
  return {.microbatch = global / cuts, .num_microbatches = cuts};
}

static void check_tables(const Recipe& recipe, int ranks) {
  SHOAL_CHECK(ranks == 1 || recipe.ps.servers > 0, InvalidInput, ranks,
              " ranks share the rows of [[tables]], which servers have, and ps.servers is 0. Remedy: "
              "--ps.servers=1, or more");
  const auto shapes = shapes_of(hollow_model(recipe));
  for (const TableSettings& table : recipe.tables)
    SHOAL_CHECK(std::ranges::any_of(
                    shapes, [&](const auto& each) { return rewrite::matches(table.parameters, each.first); }),
                InvalidInput, "tables: no parameter of ", recipe.model.name, " is called \"",
                table.parameters, "\"");
}

void check_ranks(const Recipe& recipe, int ranks) {
  const Parallelism parallelism = parallelism_of(recipe, ranks);
  const auto num_microbatches = static_cast<int>(sizes_of(recipe, parallelism).num_microbatches);
  if (!recipe.tables.empty()) check_tables(recipe, ranks);
  if (ranks == 1) return;
  const auto& [mesh, world, tensors, plan, plan_name, folder, limit] = parallelism;
  if (const int pipeline = compile::pipeline_ranks_of(plan, mesh); pipeline > 1)
    compile::timeline_of(plan, pipeline, num_microbatches);
  std::vector<std::string> names;
  const auto shapes = shapes_of(hollow_model(recipe));
  for (const auto& [name, shape] : shapes) names.push_back(name);
  check_fits(plan, mesh, names, plan_name);
  check_annotations(recipe, parallelism);
  const Optimizer optimizer = optimizer_of(recipe);
  for (const auto& [name, shape] : shapes)
    if (!compile::is_table(plan, name))
      compile::pins_of(plan, mesh, name, shape, compile::uncut_by(optimizer, shape), plan_name);
}

std::unique_ptr<ps::Tables> Ranks::tables(const Recipe& recipe) const {
  if (recipe.ps.servers == 0) return nullptr;
  SHOAL_CHECK(elastic::servers_in(elastic::environment_of(environ)) > 0, InvalidInput, "ps.servers is ",
              recipe.ps.servers,
              ", and who started this job has started none. Remedy: shoal train -n RANKS starts both");
  return world_->tables();
}

Ranks::Ranks(const Recipe& recipe, const elastic::Environment& environment)
    : place_(elastic::place_of(environment)), parallelism_(parallelism_of(recipe, place_.size)) {
  if (place_.size == 1 && recipe.ps.servers == 0) return;
  const at::Device device = place_.size == 1 ? at::Device(at::kCPU) : device_of(recipe);
  world_ = std::make_unique<World>(WorldOptions{.device = device.is_cuda() ? device.index() : -1});
  if (place_.size == 1) return;
  const Parallelism joined = world_->parallelism({}, {});
  parallelism_.world = joined.world;
  parallelism_.tensors = joined.tensors;
  parallelism_.limit = joined.limit;
}

void Ranks::follow(const Recipe& recipe) { parallelism_.plan = parallelism_of(recipe, size()).plan; }

sharding::Range Ranks::part_of(std::int64_t samples) const {
  return samples_of(parallelism_.mesh, rank(), samples, parallelism_.plan);
}

void Ranks::check_same(const Recipe& recipe) const {
  if (size() == 1) return;
  for (const auto& [key, value] : settings_of(recipe)) {
    if (key == "job.dump_folder") continue;  // hosts may have it elsewhere
    const auto hash = static_cast<std::int64_t>(data::hash_bytes(key + value) >> 1);
    const bool differs = of_first(hash) != hash;
    const std::int64_t other = largest(differs ? rank() : 0);
    SHOAL_CHECK(other == 0, InvalidInput, "train: ranks have different recipes: ", key, " of rank ", other,
                " is not that of rank 0; here, on rank ", rank(), ", it is ", value);
  }
}

std::int64_t Ranks::of_first(std::int64_t number) const {
  if (size() > 1) world_->communicator().broadcast({&number, 1, DType::Int64}, 0)->wait(parallelism_.limit);
  return number;
}

std::string Ranks::of_first(std::string text) const {
  text.resize(static_cast<std::size_t>(of_first(static_cast<std::int64_t>(text.size()))));
  if (size() > 1 && !text.empty())
    world_->communicator()
        .broadcast({text.data(), static_cast<std::int64_t>(text.size()), DType::UInt8}, 0)
        ->wait(parallelism_.limit);
  return text;
}

std::int64_t Ranks::largest(std::int64_t number) const {
  if (size() > 1)
    world_->communicator()
        .all_reduce({&number, 1, DType::Int64}, comm::ReduceOp::Max)
        ->wait(parallelism_.limit);
  return number;
}

}  // namespace shoal::cli
