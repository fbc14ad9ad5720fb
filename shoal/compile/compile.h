// SPDX-License-Identifier: Apache-2.0
// The one way from a captured graph to what a rank runs: a list of moves, each a rewrite with a verifier
// after it.
//
//   tables        of all ranks     lookups of rows that are elsewhere are pulls, and their gradients pushes
//   precision                      products of matrices in bfloat16 or float16, if that is said
//   cleanup                        views and copies that change nothing, repeated and dead nodes
//   stages                         which stage of a pipeline each node is of
//   accumulate                     gradients are added to those of the micro-batches before     (one or the other)
//   update                         clipping, and the optimizer's ops                            (of these two)
//   place                          every value has a layout on the mesh
//   partition     of one rank      local shapes, and a message for each value that moves
//   stage_of_rank                  its own nodes, and what crosses between stages
//   recompute                      what backward makes again instead of forward keeping it
//   gather_ahead                   parameters that are used soon after each other travel together
//   buckets                        so do gradients, and parameters that were updated in parts
//   packing                        what is packed for a message, what the message is, what is unpacked
//   offload                        what lies in a file from where it is made to where it is read last
//   lower                          instructions on slots
//
// One device has no mesh: recompute follows update, then offload and lower. A pipeline's gradients are updated
// by a graph of their own (Then::UpdateSums).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/compile/fit.h"
#include "shoal/compile/normaliser.h"
#include "shoal/compile/pins.h"
#include "shoal/compile/plan.h"
#include "shoal/compile/update.h"
#include "shoal/ir/graph.h"
#include "shoal/ir/scopes.h"
#include "shoal/planner/find.h"
#include "shoal/program/program.h"
#include "shoal/rewrite/place.h"
#include "shoal/rewrite/stages.h"
#include "shoal/sharding/mesh.h"

namespace shoal::compile {

// What becomes of gradients.
enum class Then {
  HandOut,      // they are results
  Accumulate,   // and sums with those of other micro-batches
  Update,       // and the parameters are updated by them
  UpdateSums,   // the graph is that of the sums alone (accumulate.h), and the parameters are updated by them
  UpdateGiven,  // likewise, by what all ranks have alike
};

struct Settings {
  Then then = Then::HandOut;
  UpdateSettings update = {};
  std::string_view plan_name = "plan";  // for messages; borrowed
  // After each move of that name, or after every one for "all", `print` is given what there is then, as text.
  std::string print_after = {};
  std::function<void(std::string_view move, const std::string& text)> print = {};
  const rewrite::Stages* stages = nullptr;  // of a pipeline, if they are known; borrowed
  const ir::Scopes* scopes = nullptr;       // of the program, if it has any (scopes.h); borrowed
  bool is_settled = false;  // parameters lie as the plan says; else what it leaves out is found (found.h)
  // Gives all ranks the first one's text, which it alone makes; of several processes whose planner has a budget.
  std::function<std::string(const std::function<std::string()>&)> from_first = {};
  bool emulates = false;       // a lower precision that the devices have no fast kernels for
  std::string device = "cpu";  // of what other stages send
  bool verifies = true;        // after each move; else only what the whole graph is before it is placed
};

struct MoveTime {
  std::string_view move;
  double seconds = 0;
};

// A step of all ranks together, placed.
struct Whole {
  ir::Graph graph;
  std::vector<UpdateGroup> groups;  // of Then::Update and UpdateSums
  Normaliser normaliser;            // of Then::Accumulate
  sharding::Mesh mesh;
  rewrite::Placed placed;  // of several ranks
  rewrite::Stages stages;  // of a pipeline
  Settings settings;
  Plan plan;                          // with what was found
  std::vector<planner::Found> found;  // of all axes, the innermost first
  std::vector<MoveTime> times;
};

struct Compiled {
  Whole whole;
  ir::Graph local;
  std::optional<Fit> fit;  // of recompute, where it chooses by bytes
  program::Program program;
};

// Throws InvalidInput where the plan does not fit the graph or the mesh.
Compiled compile(ir::Graph captured, const Plan& plan, const sharding::Mesh& mesh, int rank,
                 const Settings& settings = {});

// Its two halves: what is the same for all ranks, and what one of them makes of it.
Whole compile_whole(ir::Graph captured, const Plan& plan, const sharding::Mesh& mesh,
                    const Settings& settings = {});
Compiled compile_local(Whole whole, int rank);

// The names of all moves, in their order.
std::vector<std::string_view> moves();

}  // namespace shoal::compile
