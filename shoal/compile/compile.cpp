// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/compile.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/compile/accumulate.h"
#include "shoal/compile/cut.h"
#include "shoal/compile/found.h"
#include "shoal/compile/scopes.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/bag_offsets.h"
#include "shoal/rewrite/buckets.h"
#include "shoal/rewrite/cleanup.h"
#include "shoal/rewrite/gather_ahead.h"
#include "shoal/rewrite/offload.h"
#include "shoal/rewrite/packing.h"
#include "shoal/rewrite/partition.h"
#include "shoal/rewrite/placed_text.h"
#include "shoal/rewrite/precision.h"
#include "shoal/rewrite/recompute.h"
#include "shoal/rewrite/sparse_gradients.h"
#include "shoal/rewrite/stage_of_rank.h"
#include "shoal/rewrite/tables.h"
#include "shoal/schedule/schedule.h"

namespace shoal::compile {

namespace {

// What the moves work on.
struct Unit {
  Compiled made;
  int rank = 0;

  Whole& whole() { return made.whole; }
  Then then() const { return made.whole.settings.then; }
};

struct Move {
  enum class Of { All, Placed, Rank, Program };  // what it leaves behind

  std::string_view name;
  Of of;
  enum class On { Any, Ranks, Stages };  // one device too; several ranks; a pipeline of them
  On on;
  bool (*applies)(Then);
  void (*apply)(Unit&);
};

}  // namespace

static bool always(Then) { return true; }
static bool has_forward(Then then) { return then != Then::UpdateSums && then != Then::UpdateGiven; }
static bool accumulates(Then then) { return then == Then::Accumulate; }
static bool sums_at_once(Then then) { return has_forward(then) && !accumulates(then); }
static bool updates(Then then) { return then == Then::Update || !has_forward(then); }

// Parameters of the graph that are tables by the plan.
static std::vector<rewrite::TableSpec> tables_of(const Plan& plan, const ir::Graph& graph) {
  std::vector<rewrite::TableSpec> found;
  for (const auto& source : graph.sources) {
    if (graph.at(source.value).role != ir::Role::Parameter) continue;
    if (const auto* table = table_in(plan, source.name)) found.push_back({source.name, table->clicks});
  }
  return found;
}

static void place_in_tables(Unit& unit) {
  Whole& whole = unit.whole();
  const auto found = tables_of(whole.plan, whole.graph);
  if (found.empty()) return;
  SHOAL_CHECK(whole.plan.precision.compute != DType::Float16, InvalidInput,
              "tables: gradients of rows go to their tables as backward makes them, and float16 scales the "
              "loss. Remedy: precision bfloat16, which scales nothing");
  SHOAL_CHECK(num_stages_of(whole.plan, whole.mesh) == 1, InvalidInput,
              "tables: all ranks push the rows of a step together, and those of a pipeline's other stages "
              "have none of ",
              found.front().parameters, ". Remedy: data parallel ranks");
  using enum rewrite::RowGradients;
  whole.graph = rewrite::tables(std::move(whole.graph), found,
                                unit.then() == Then::Update       ? Push
                                : unit.then() == Then::Accumulate ? AddUp
                                                                  : None);
}

static void check_offsets(Unit& unit) {
  Whole& whole = unit.whole();
  std::int64_t ranks = 1;
  for (const sharding::Axis& axis : whole.mesh.axes)
    if (is_batch_axis(whole.plan, axis.name)) ranks *= axis.size;
  if (ranks == 1) return;
  whole.graph = rewrite::check_bag_offsets(
      whole.graph, ranks,
      [&](const std::string& input, std::size_t num_dims) { return is_cut(whole.plan, input, num_dims); });
}

static void lower_precision(Unit& unit) {
  Whole& whole = unit.whole();
  check(whole.plan.precision);
  if (whole.plan.precision.compute == DType::Float32) return;
  whole.graph = rewrite::in_precision(whole.graph, whole.plan.precision, whole.settings.emulates);
}

static void clean(Unit& unit) {
  ir::Graph& graph = unit.whole().graph;
  graph = rewrite::cleanup(std::move(graph));
}

static void accumulate(Unit& unit) {
  Whole& whole = unit.whole();
  whole.normaliser = normaliser_of(whole.graph);
  whole.graph = append_accumulation(std::move(whole.graph), whole.normaliser);
}

static void update(Unit& unit) {
  Whole& whole = unit.whole();
  SHOAL_CHECK(unit.then() != Then::Update || num_stages_of(whole.plan, whole.mesh) == 1, Internal,
              "compile: a pipeline's update is a graph of its own");
  UpdateSettings settings = whole.settings.update;
  settings.master = whole.plan.precision.master;
  auto [graph, groups] = append_update(std::move(whole.graph), settings);
  whole.graph = std::move(graph);
  whole.groups = std::move(groups);
}

static void stages(Unit& unit) {
  Whole& whole = unit.whole();
  const auto* known = whole.settings.stages;
  auto [graph, found] = cut(whole);
  for (auto& [parameter, owner] : found.owners)
    if (is_updated_whole(whole.settings.update.parts, parameter)) owner = rewrite::Stages::kShared;
  if (known != nullptr) check_owners(*known, found, whole.settings.update.parts);
  whole.graph = std::move(graph);
  whole.stages = known != nullptr ? *known : std::move(found);
}

static void place(Unit& unit) {
  Whole& whole = unit.whole();
  // A pipeline's forward and backward are placed as if each stage had all; `stage_of_rank` takes its own.
  const auto* stages = has_forward(unit.then()) ? nullptr : whole.settings.stages;
  const Plan said = whole.plan;
  const auto pins_for = [&](const ir::Graph& graph) {
    whole.plan = said;
    if (has_forward(unit.then()))
      whole.found = find_placements(graph, whole.mesh, whole.settings, whole.plan);
    rewrite::Pins pins =
        pins_of(whole.plan, whole.mesh, graph, whole.settings.update.parts, whole.settings.plan_name, stages);
    for (auto& [name, of] : pins.parameters) {
      if (unit.then() == Then::Accumulate) of.gradient = of.summed;
      if (unit.then() == Then::UpdateGiven) of.summed = of.gradient;
      if (!has_forward(unit.then())) of.gradient = of.updated;
    }
    for (const planner::Found& found : whole.found)
      for (const planner::FoundAxis& of : found.axes) pins.decided.push_back(of.decided);
    return pins;
  };
  whole.placed = rewrite::place_with(pins_for, whole.graph, whole.mesh);
}

static void sparse_gradients(Unit& unit) {
  unit.whole().placed = rewrite::with_sparse_gradients(std::move(unit.whole().placed));
}

static bool has_backward(const ir::Graph& graph) {
  return std::ranges::find(graph.nodes, ir::Phase::Backward, &ir::Node::phase) != graph.nodes.end();
}

static void partition(Unit& unit) { unit.made.local = rewrite::partition(unit.whole().placed, unit.rank); }
static void gather_ahead(Unit& unit) {
  const Plan& plan = unit.whole().plan;
  unit.made.local =
      rewrite::gather_ahead(unit.made.local, plan.gather_bytes, plan.prefetch_bytes.value_or(0));
}
static void fill_buckets(Unit& unit) {
  const Plan& plan = unit.whole().plan;
  // What is given has been reduced.
  const DType reduce = unit.then() == Then::UpdateGiven ? DType::Float32 : plan.precision.reduce;
  unit.made.local =
      rewrite::buckets(unit.made.local, plan.bucket_bytes, reduce, plan.overlap_bytes.value_or(0) > 0);
}
static void pack(Unit& unit) {
  unit.made.local = rewrite::pack(unit.made.local, unit.whole().mesh, unit.rank);
}
static void stage_of_rank(Unit& unit) {
  const Whole& whole = unit.whole();
  unit.made.local = rewrite::stage_of_rank(unit.made.local, whole.stages, whole.mesh, unit.rank,
                                           whole.plan.pipeline_axis, whole.settings.device);
}

static void offload(Unit& unit) {
  check(unit.whole().plan.offload);
  unit.made.local = rewrite::offload(unit.made.local, unit.whole().plan.offload);
}

static std::vector<int> stages_of(const Unit& unit) {
  const auto& [mesh, plan] = std::tie(unit.made.whole.mesh, unit.made.whole.plan);
  if (!has_forward(unit.made.whole.settings.then) || num_stages_of(plan, mesh) == 1) return {0};
  return unit.made.whole.stages.of_rank(mesh.coordinate(unit.rank, mesh.axis(plan.pipeline_axis)));
}

static void lower(Unit& unit) {
  const Whole& whole = unit.whole();
  // The next micro-batch's forward comes before this one's update.
  const bool is_staged = unit.then() == Then::Accumulate && num_stages_of(whole.plan, whole.mesh) > 1;
  const bool is_split = is_staged && splits_backward(whole.plan);
  program::Program& program = unit.made.program;
  program =
      program::lower(unit.made.local, is_staged ? program::Buffers::AfterForward : program::Buffers::InUpdate,
                     whole.plan.overlap_bytes.value_or(0), stages_of(unit),
                     is_split ? program::Backward::InTwoParts : program::Backward::Whole);
  for (program::Source& source : program.sources)
    source.is_offloaded = whole.plan.offload.has(source.role, program.types.at(source.slot.index));
}

// What the moves after recompute make.
static program::Program lowered(const Unit& unit, ir::Graph local) {
  Unit after;
  after.whole().mesh = unit.made.whole.mesh;
  after.whole().plan = unit.made.whole.plan;
  after.whole().stages = unit.made.whole.stages;
  after.whole().settings.then = unit.then();
  after.rank = unit.rank;
  after.made.local = std::move(local);
  if (after.whole().mesh.size() > 1)
    for (const auto move : {gather_ahead, fill_buckets, pack}) move(after);
  offload(after);
  lower(after);
  return std::move(after.made.program);
}

// The graph of the first rank that runs the same nodes: of all, or of those that have this one's stages.
static ir::Graph graph_of_first(const Unit& unit) {
  const Whole& whole = unit.made.whole;
  std::vector<int> alike;
  for (std::size_t axis = 0; axis < whole.mesh.axes.size(); ++axis)
    if (whole.mesh.axes[axis].name != whole.plan.pipeline_axis) alike.push_back(static_cast<int>(axis));
  const int first = alike.empty() ? unit.rank : whole.mesh.group(unit.rank, alike).front();
  if (first == unit.rank) return unit.made.local;
  Unit other;
  other.made.whole = whole;
  other.rank = first;
  partition(other);
  if (num_stages_of(whole.plan, whole.mesh) > 1) stage_of_rank(other);
  return std::move(other.made.local);
}

// By what the first of these ranks has: they have to choose alike.
static rewrite::Dropped fitted(Unit& unit) {
  const Plan& plan = unit.whole().plan;
  const ir::Graph first = graph_of_first(unit);
  SHOAL_CHECK(first.values.size() == unit.made.local.values.size(), Internal, "recompute: rank ", unit.rank,
              " has ", unit.made.local.values.size(), " values, and the first of its stages' ",
              first.values.size());
  try {
    unit.made.fit = fit(first, plan.recompute.bytes, plan.gathers_again,
                        [&](const ir::Graph& local) { return lowered(unit, local); });
  } catch (const Unfit& error) {
    if (num_stages_of(plan, unit.whole().mesh) == 1) throw;
    std::string names;
    for (const int stage : stages_of(unit)) names += concat(names.empty() ? "stage " : " and ", stage);
    throw Unfit(concat(names, ": ", error.what()), error.least());
  }
  return unit.made.fit->dropped;
}

static void recompute(Unit& unit) {
  const Plan& plan = unit.whole().plan;
  ir::Graph& local = unit.made.local;
  if (plan.recompute.mode == rewrite::RecomputeMode::None || !has_backward(local)) return;
  check(plan.recompute);
  local = rewrite::recompute(
      local, plan.recompute.mode == rewrite::RecomputeMode::Auto
                 ? fitted(unit)
                 : rewrite::dropped_by(plan.recompute, local, plan.gathers_again, unit.whole().graph));
}

static constexpr Move kMoves[] = {
    {"tables", Move::Of::All, Move::On::Any, has_forward, place_in_tables},
    {"bag_offsets", Move::Of::All, Move::On::Ranks, has_forward, check_offsets},
    {"precision", Move::Of::All, Move::On::Any, has_forward, lower_precision},
    {"cleanup", Move::Of::All, Move::On::Any, has_forward, clean},
    {"stages", Move::Of::All, Move::On::Stages, has_forward, stages},
    {"accumulate", Move::Of::All, Move::On::Any, accumulates, accumulate},
    {"update", Move::Of::All, Move::On::Any, updates, update},
    {"place", Move::Of::Placed, Move::On::Ranks, always, place},
    {"sparse_gradients", Move::Of::Placed, Move::On::Ranks, sums_at_once, sparse_gradients},
    {"partition", Move::Of::Rank, Move::On::Ranks, always, partition},
    {"stage_of_rank", Move::Of::Rank, Move::On::Stages, has_forward, stage_of_rank},
    {"recompute", Move::Of::Rank, Move::On::Any, has_forward, recompute},
    {"gather_ahead", Move::Of::Rank, Move::On::Ranks, always, gather_ahead},
    {"buckets", Move::Of::Rank, Move::On::Ranks, always, fill_buckets},
    {"packing", Move::Of::Rank, Move::On::Ranks, always, pack},
    {"offload", Move::Of::Rank, Move::On::Any, always, offload},
    {"lower", Move::Of::Program, Move::On::Any, always, lower},
};

static void verify(const Unit& unit, const Move& move) {
  switch (move.of) {
    case Move::Of::All: return ir::verify(unit.made.whole.graph);
    case Move::Of::Placed: return rewrite::verify(unit.made.whole.placed);
    case Move::Of::Rank: return ir::verify(unit.made.local);
    case Move::Of::Program: return;
  }
}

static std::string text_of(const Unit& unit, const Move& move) {
  switch (move.of) {
    case Move::Of::All: return ir::to_text(unit.made.whole.graph);
    case Move::Of::Placed: return rewrite::to_text(unit.made.whole.placed);
    case Move::Of::Rank: return ir::to_text(unit.made.local);
    case Move::Of::Program: return program::to_text(unit.made.program);
  }
  return "";
}

static void run(Unit& unit, bool is_local) {
  Whole& whole = unit.whole();
  for (const Move& move : kMoves) {
    const bool is_of_rank = move.of == Move::Of::Rank || move.of == Move::Of::Program;
    if (is_of_rank != is_local || !move.applies(unit.then())) continue;
    if (move.on == Move::On::Ranks && whole.mesh.size() == 1) continue;
    if (move.on == Move::On::Stages && num_stages_of(whole.plan, whole.mesh) == 1) continue;
    const auto begin = std::chrono::steady_clock::now();
    move.apply(unit);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    whole.times.push_back({move.name, took.count()});
    if (whole.settings.verifies || move.of == Move::Of::All) verify(unit, move);
    const std::string& wanted = whole.settings.print_after;
    if (whole.settings.print && (wanted == move.name || wanted == "all"))
      whole.settings.print(move.name, text_of(unit, move));
  }
}

std::vector<std::string_view> moves() {
  std::vector<std::string_view> names;
  std::ranges::transform(kMoves, std::back_inserter(names), &Move::name);
  return names;
}

Whole compile_whole(ir::Graph captured, const Plan& plan, const sharding::Mesh& mesh,
                    const Settings& settings) {
  const std::string& wanted = settings.print_after;
  const auto names = moves();
  SHOAL_CHECK(wanted.empty() || wanted == "all" || std::ranges::find(names, wanted) != names.end(),
              InvalidInput, "compile: there is no move '", wanted, "' to print after; did you mean '",
              nearest(wanted, names), "'?");
  Unit unit;
  Whole& whole = unit.whole();
  whole.graph = std::move(captured);
  whole.mesh = mesh;
  whole.settings = settings;
  whole.plan = plan;
  if (settings.scopes != nullptr) apply(*settings.scopes, mesh, whole.plan, settings.plan_name);
  if (!say_stages(settings.scopes, mesh, whole.plan))
    for (ir::Node& node : whole.graph.nodes) node.stage = 0;
  run(unit, false);
  return std::move(whole);
}

Compiled compile_local(Whole whole, int rank) {
  Unit unit;
  unit.whole() = std::move(whole);
  unit.rank = rank;
  if (unit.whole().mesh.size() == 1) unit.made.local = unit.whole().graph;
  run(unit, true);
  return std::move(unit.made);
}

Compiled compile(ir::Graph captured, const Plan& plan, const sharding::Mesh& mesh, int rank,
                 const Settings& settings) {
  return compile_local(compile_whole(std::move(captured), plan, mesh, settings), rank);
}

}  // namespace shoal::compile
