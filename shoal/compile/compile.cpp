// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/compile.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/compile/accumulate.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/buckets.h"
#include "shoal/rewrite/cleanup.h"
#include "shoal/rewrite/gather_ahead.h"
#include "shoal/rewrite/packing.h"
#include "shoal/rewrite/partition.h"
#include "shoal/rewrite/placed_text.h"
#include "shoal/rewrite/recompute.h"

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
  bool of_ranks;  // where there are several
  bool (*applies)(Then);
  void (*apply)(Unit&);
};

}  // namespace

static bool always(Then) { return true; }
static bool has_forward(Then then) { return then != Then::UpdateSums && then != Then::UpdateGiven; }
static bool accumulates(Then then) { return then == Then::Accumulate; }
static bool updates(Then then) { return then == Then::Update || !has_forward(then); }

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
  auto [graph, groups] = append_update(std::move(whole.graph), whole.settings.update);
  whole.graph = std::move(graph);
  whole.groups = std::move(groups);
}

static void place(Unit& unit) {
  Whole& whole = unit.whole();
  rewrite::Pins pins =
      pins_of(whole.plan, whole.mesh, whole.graph, whole.settings.update.parts, whole.settings.plan_name);
  for (auto& [name, of] : pins.parameters) {
    if (unit.then() == Then::Accumulate) of.gradient = of.summed;
    if (unit.then() == Then::UpdateGiven) of.summed = of.gradient;
    if (!has_forward(unit.then())) of.gradient = of.updated;
  }
  whole.placed = rewrite::place(whole.graph, whole.mesh, pins);
}

static bool has_backward(const ir::Graph& graph) {
  return std::ranges::find(graph.nodes, ir::Phase::Backward, &ir::Node::phase) != graph.nodes.end();
}

static void partition(Unit& unit) { unit.made.local = rewrite::partition(unit.whole().placed, unit.rank); }
static void gather_ahead(Unit& unit) {
  unit.made.local = rewrite::gather_ahead(unit.made.local, unit.whole().plan.gather_bytes);
}
static void fill_buckets(Unit& unit) {
  unit.made.local = rewrite::buckets(unit.made.local, unit.whole().plan.bucket_bytes);
}
static void pack(Unit& unit) {
  unit.made.local = rewrite::pack(unit.made.local, unit.whole().mesh, unit.rank);
}
static void lower(Unit& unit) { unit.made.program = program::lower(unit.made.local); }

// What the moves after recompute make.
static program::Program lowered(const Unit& unit, ir::Graph local) {
  Unit after;
  after.whole().mesh = unit.made.whole.mesh;
  after.whole().plan = unit.made.whole.plan;
  after.made.local = std::move(local);
  if (after.whole().mesh.size() > 1)
    for (const auto move : {gather_ahead, fill_buckets, pack}) move(after);
  lower(after);
  return std::move(after.made.program);
}

// By what rank 0 has: all ranks have to choose alike.
static rewrite::Dropped fitted(Unit& unit) {
  const Plan& plan = unit.whole().plan;
  const ir::Graph first = unit.rank == 0 ? unit.made.local : rewrite::partition(unit.whole().placed, 0);
  SHOAL_CHECK(first.values.size() == unit.made.local.values.size(), Internal, "recompute: rank ", unit.rank,
              " has ", unit.made.local.values.size(), " values, and rank 0 ", first.values.size());
  unit.made.fit = fit(first, plan.recompute.bytes, plan.gathers_again,
                      [&](const ir::Graph& local) { return lowered(unit, local); });
  return unit.made.fit->dropped;
}

static void recompute(Unit& unit) {
  const Plan& plan = unit.whole().plan;
  ir::Graph& local = unit.made.local;
  if (plan.recompute.mode == rewrite::RecomputeMode::None || !has_backward(local)) return;
  check(plan.recompute);
  local = rewrite::recompute(local, plan.recompute.mode == rewrite::RecomputeMode::Auto
                                        ? fitted(unit)
                                        : rewrite::dropped_by(plan.recompute, local, plan.gathers_again));
}

static constexpr Move kMoves[] = {
    {"cleanup", Move::Of::All, false, has_forward, clean},
    {"accumulate", Move::Of::All, false, accumulates, accumulate},
    {"update", Move::Of::All, false, updates, update},
    {"place", Move::Of::Placed, true, always, place},
    {"partition", Move::Of::Rank, true, always, partition},
    {"recompute", Move::Of::Rank, false, has_forward, recompute},
    {"gather_ahead", Move::Of::Rank, true, always, gather_ahead},
    {"buckets", Move::Of::Rank, true, always, fill_buckets},
    {"packing", Move::Of::Rank, true, always, pack},
    {"lower", Move::Of::Program, false, always, lower},
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
    if (move.of_ranks && whole.mesh.size() == 1) continue;
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
