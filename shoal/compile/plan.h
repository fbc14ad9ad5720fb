// SPDX-License-Identifier: Apache-2.0
// A plan in text: all that is decided of how a step runs on a mesh, move by move (compile.h). A file of it is
// a strategy that can be kept, compared and given again; what it leaves out is as the defaults say.
//
//   mesh         replicate=2 shard=-1 tensor=2       names are free; one size may be -1: what is left of the ranks
//   batch        replicate shard                     the axes that cut the batch
//   input        mask dim=1                          of an item of it: where its samples lie
//   input        table whole                         or that every rank has all of it
//   zero         shard stage=3 gathers=once          what the ranks of an axis keep in parts; of stage 2
//                                                    parts=h.*.weight: these parameters too
//   # Two matrices of a block, the first cut by columns, the second by rows.
//   parameter    h.*.mlp.c_fc.weight    tensor=S(1)
//   parameter    h.*.mlp.c_fc.bias      tensor=S(0)
//   parameter    h.*.mlp.c_proj.weight  tensor=S(0)
//   output       h.*.mlp.c_proj         tensor=R
//   find         tensor                              what the lines leave out of an axis is found (found.h)
//   split        h.*.mlp                             of it: parameters of these modules are cut, all others whole
//   planner      tensor_batch=true zero=true kept=300MiB budget=5   what the search may (Planner); and
//                link=2.5e10 latency=2e-6            of the machines it is for, flops and memory too
//   pipeline     pipeline schedule=1f1b microbatches=8   the axis whose ranks have stages, in which order; of
//                interleaved_1f1b and looped_bfs stages_per_rank=3 too; or schedule=FILE.csv (schedule/csv.h)
//   actions      0F0,0F1,0B0,0F2,0B1,0B2             of that file, a line a rank; none: it is read
//   stage        h.6                                 where each but the first begins; none: found
//   accumulate   reduce=each                         of several micro-batches
//   table        emb.*.weight                        parameters whose rows are in tables (rewrite/tables.h);
//                emb.*.weight clicks=targets         of scored rows, the input that has each sample's clicks
//   precision    bfloat16                            of products; the rest is float32 (rewrite/precision.h)
//                                                    or float16 scale=65536 grows_after=2000; master=kahan;
//                                                    reduce=bfloat16: gradients, between ranks
//   recompute    full transformer.h.*                what backward makes again: none, full, selective, or auto
//                                                    with bytes=96MiB; collectives=again, these too
//   offload      optimizer_state activations         to a file, and parameters, gradients; least=64KiB: what is
//                                                    smaller stays in memory
//   gather_ahead 256KiB                              parameters, together
//   buckets      25MiB                               gradients, together
//
// A line `parameter` or `output` is about all parameters, or modules, that its pattern names; '*' stands for
// any characters but '.'. Axes that it leaves out are not its business: data parallelism and ZeRO cut by them. An
// axis that cuts neither the batch nor the model into stages, and that no line names, is found; with lines `split`
// they bind what is found, and the axis may cut the batch where nothing else does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/planner/rates.h"
#include "shoal/rewrite/offload.h"
#include "shoal/rewrite/precision.h"
#include "shoal/rewrite/recompute.h"
#include "shoal/rewrite/table_spec.h"
#include "shoal/schedule/schedule.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::compile {

struct PlanLine {                                         // `parameter` or `output`
  enum class Kind { Parameter, Output };                  // which of them
  Kind kind = Kind::Parameter;                            // what `pattern` names: parameters, or modules
  std::string pattern;                                    // '*' stands for any characters but '.'
  std::map<std::string, sharding::Placement> placements;  // by axis
  friend bool operator==(const PlanLine&, const PlanLine&) = default;
};

// How placements are searched.
struct Planner {
  bool tensor_batch = false;  // the axis may cut the batch, where no other does, and leave matrices whole
  // Which parameters the ranks of the ZeRO axis keep in parts is found, of stage 2: those that `kept` has no room for.
  bool zero = false;
  std::int64_t kept = 0;      // bytes of parameters, of the whole model, that a rank may have; 0: any
  double budget = 0;          // seconds, after which the best so far is taken; 0: as many as it takes
  planner::Rates rates = {};  // of the machines that it is for
  friend bool operator==(const Planner&, const Planner&) = default;
};

// A field a line of a plan file, in the order of the moves.
struct Plan {
  std::vector<sharding::Axis> mesh = {};  // outer to inner; none: somebody else says
  // --- place
  std::vector<std::string> batch_axes = {"replicate", "shard"};  // those that the mesh has
  // Of the batch, with all that is below them ("graph": "graph.0" too): the same on every rank, not cut.
  std::vector<std::string> whole_inputs = {};
  std::map<std::string, int> batch_dims = {};  // of its items: where samples lie, if not in dim 0
  std::string zero_axis = "shard";             // whose ranks keep parts
  // What its ranks keep in parts: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too
  // (Rajbhandari et al., arXiv:1910.02054). -1: 3 where the axis has more than one rank.
  int zero_stage = -1;
  bool gathers_again = true;                 // parameters in parts: for backward, instead of keeping them
  std::vector<std::string> zero_parts = {};  // of stage 2: parameters, with '*', that are kept in parts too
  std::vector<PlanLine> lines = {};          // how parameters and outputs of modules lie
  std::vector<std::string> found_axes = {};  // besides those that no line names
  std::vector<std::string> splits = {};      // modules, or parameters
  Planner planner = {};                      // how it is found
  // --- stages
  std::string pipeline_axis = "pipeline";          // whose ranks have stages, if the mesh has it
  std::string schedule = "1f1b";                   // or FILE.csv
  std::optional<schedule::Timeline> actions = {};  // of that file (read_schedule)
  int stages_per_rank = 0;                         // 0: as many as the schedule has by itself
  int microbatches = 0;                            // that a step's batch is cut into; 0: microbatches_of
  std::vector<std::string> stages = {};  // where each but the first begins (rewrite/stages.h); none: found
  // --- accumulate: gradients of several micro-batches are reduced once a step, or one after the other, which
  // keeps them in parts. Not said: once at stages 0 and 1, each at 2 and 3, whose point is less memory.
  std::optional<bool> reduces_each = {};
  // --- tables, of one device too: names of parameters, with '*' for any characters but '.'
  std::vector<rewrite::TableSpec> tables = {};
  // --- precision, of one device too: of products
  rewrite::Precision precision = {};
  // --- recompute, of one device too: what backward makes again
  rewrite::Recompute recompute = {};
  // --- offload, of one device too: what lies in a file
  rewrite::Offload offload = {};
  // --- buckets and gather_ahead, bytes of whole tensors
  std::int64_t bucket_bytes = std::int64_t{25} << 20;   // gradients are reduced when so many are there
  std::int64_t gather_bytes = std::int64_t{256} << 10;  // parameters are gathered together up to so many
  // --- gather_ahead: of parameters that are gathered before their use; and lower: of messages that are under way
  // beside computation, 0: each is waited for where it stands. Not said: none, unless the communicator is
  // asynchronous (resolve_overlap).
  std::optional<std::int64_t> prefetch_bytes = {};
  std::optional<std::int64_t> overlap_bytes = {};
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Throws InvalidInput where a part of it is missing, or one is said that its mode has no use for.
void check(const rewrite::Recompute& recompute);
// Throws InvalidInput where it says two things of an op, or a scale that rounds.
void check(const rewrite::Precision& precision);
// Throws InvalidInput where a number is below 0.
void check(const Planner& planner);
// Throws InvalidInput where it says how small what stays is, and nothing goes.
void check(const rewrite::Offload& offload);

// As lines, each with its end: what differs from the defaults, and is the same read back.
std::string to_text(const Plan& plan);
// The plan of such lines; "#" begins a comment. Throws InvalidInput naming `name`, the line, and what is wanted there.
Plan plan_from_text(std::string_view text, std::string_view name = "plan");
// One field, of what follows the word in its line: "bfloat16", "bfloat16 lower=aten::exp full=aten::bmm",
// "float16 scale=1024". All four throw InvalidInput naming `name`, and check what they have read.
rewrite::Precision precision_from_text(std::string_view words, std::string_view name = "precision");
// Likewise: "tensor_batch=true kept=300MiB".
Planner planner_from_text(std::string_view words, std::string_view name = "planner");
// Likewise: "full transformer.h.*", "auto bytes=96MiB".
rewrite::Recompute recompute_from_text(std::string_view words, std::string_view name = "recompute");
// Likewise: "optimizer_state activations least=1MiB".
rewrite::Offload offload_from_text(std::string_view words, std::string_view name = "offload");

// Whether the rows of a parameter of that name are in a table.
bool is_table(const Plan& plan, std::string_view parameter);
// What the first line that names it says; null where none does.
const rewrite::TableSpec* table_in(const Plan& plan, std::string_view parameter);

// Whether a line `split` names the parameter, or a module that it is in.
bool is_split(const Plan& plan, std::string_view parameter);

// What is not said of overlap becomes what suits ranks whose communicator is asynchronous: a bucket is gathered
// ahead, and two are under way.
void resolve_overlap(Plan& plan);

// Reads the file that the schedule is, unless it was read before, or the schedule is one by name. Throws
// InvalidInput naming what is wrong with it (schedule/csv.h), or where it has not plan.microbatches.
void read_schedule(Plan& plan);

// How many ranks the pipeline's axis has: 1 where the mesh has none.
int pipeline_ranks_of(const Plan& plan, const sharding::Mesh& mesh);
// The rank along that axis of each stage, by the schedule. Throws InvalidInput where there is no such schedule, or
// it is of another number of ranks.
std::vector<int> ranks_of_stages(const Plan& plan, const sharding::Mesh& mesh);
int num_stages_of(const Plan& plan, const sharding::Mesh& mesh);  // 1: no pipeline
// Micro-batches of a step: as many as the plan says; else as the schedule's file has, or one a stage.
int microbatches_of(const Plan& plan, const sharding::Mesh& mesh);
// The schedule on so many ranks of that axis. Throws InvalidInput as ranks_of_stages does, where a rank cannot
// have so many stages, and where the schedule's file has fewer micro-batches.
schedule::Timeline timeline_of(const Plan& plan, int ranks, int microbatches);
bool splits_backward(const Plan& plan);  // whether its schedule does: schedule::splits_backward

// The mesh of these axes for so many ranks; one size may be -1: what is left of them. Throws InvalidInput
// where the sizes do not multiply to that.
sharding::Mesh mesh_of(const std::vector<sharding::Axis>& axes, int ranks);

// Where a parameter of that name lies by the plan's lines alone; replicated along axes that they leave out.
// Throws InvalidInput where two lines say different things.
sharding::Layout parameter_layout(const Plan& plan, const sharding::Mesh& mesh, std::string_view parameter);
// Throws InvalidInput naming lines that fit none of the parameters, and axes that the mesh has not.
void check_fits(const Plan& plan, const sharding::Mesh& mesh, const std::vector<std::string>& parameters,
                std::string_view name = "plan");

}  // namespace shoal::compile
