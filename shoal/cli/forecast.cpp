// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/forecast.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/flops.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/verbs.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/compile/accumulate.h"
#include "shoal/program/aliases.h"
#include "shoal/program/runs.h"
#include "shoal/program/workspace.h"
#include "shoal/rewrite/dead_code.h"
#include "shoal/train/distribution.h"

namespace shoal::cli {

// The trainer's, beside the program's numbers; and that of a micro-batch which is not the first.
static constexpr std::int64_t kSeed = 8;
static constexpr std::int64_t kSmall = 16 << 10;  // tensors beside a capture's

using program::MemoryKind;

const Phase& Forecast::largest() const { return *std::ranges::max_element(phases, {}, &Phase::bytes); }

namespace {

// A parameter, or a part of the optimizer's state, whole and as this rank keeps it.
struct Kept {
  std::string name;
  std::int64_t whole = 0, part = 0;
  bool is_offloaded = false;
  bool is_in_order = true;  // ranks have one stretch of it each
  // Else it is gathered as parts of one size, of which the whole is then made.
  std::int64_t gathering() const { return is_part() && !is_in_order ? whole + 2 * part : 0; }
  bool is_part() const { return part != whole; }
  // Of a parameter, in memory.
  std::int64_t bytes() const { return is_offloaded ? 0 : is_part() ? train::bytes_of_part(part) : whole; }
};

struct Update {
  program::Memory memory;
  std::vector<Kept> state;  // of the optimizer
};

}  // namespace

// Whether it is gathered as it lies: each rank has one stretch, and all are of one size.
static bool is_in_order(const sharding::Mesh& mesh, const sharding::Layout& layout,
                        const sharding::Shape& shape) {
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    const auto* shard = std::get_if<sharding::Shard>(&layout.placements[axis]);
    if (shard == nullptr || mesh.axes[axis].size == 1) continue;
    const bool is_outermost =
        std::all_of(shape.begin(), shape.begin() + shard->dim, [](std::int64_t size) { return size == 1; });
    const bool is_even =
        shard->weights.empty() &&
        shape[static_cast<std::size_t>(shard->dim)] % (mesh.axes[axis].size * shard->unit) == 0;
    if (!is_outermost || !is_even || shard->outer != 1) return false;
  }
  return true;
}

// One device has no layouts.
static std::vector<Kept> kept_of(const compile::Whole& whole, int rank, ir::Role wanted) {
  const bool is_placed = !whole.placed.kept.empty();
  const ir::Graph& graph = is_placed ? whole.placed.graph : whole.graph;
  std::vector<Kept> kept;
  for (std::size_t i = 0; i < graph.sources.size(); ++i) {
    const auto& [value, name, fingerprint] = graph.sources[i];
    const auto& [type, role, producer] = graph.at(value);
    if (role != wanted) continue;
    const auto shape =
        is_placed ? sharding::local_shape(whole.mesh, whole.placed.kept[i], type.shape, rank) : type.shape;
    const ir::TensorType part = ir::contiguous(type.dtype, shape);
    kept.push_back({.name = name,
                    .whole = ir::bytes_of(type),
                    .part = ir::bytes_of(part),
                    .is_offloaded = whole.plan.offload.has(role, part),
                    .is_in_order = !is_placed || is_in_order(whole.mesh, whole.placed.kept[i], type.shape)});
  }
  std::ranges::sort(kept, {}, &Kept::name);
  return kept;
}

// What parts in the communicator's memory take, in pages, above what they are.
static std::int64_t rounding_of(const std::vector<Kept>& kept) {
  std::int64_t bytes = 0;
  for (const Kept& each : kept)
    if (each.is_part() && !each.is_offloaded) bytes += each.bytes() - each.part;
  return bytes;
}

// `goes_on`: beside what computes, as Gloo does.
static std::int64_t communicator_bytes(const sharding::Mesh& mesh, bool goes_on) {
  if (mesh.size() == 1) return 0;
  std::int64_t bytes = comm::shm_bytes(mesh.size()) + (goes_on ? 2 * comm_c10d::kStageBytes : 0);
  for (const sharding::Axis& axis : mesh.axes)
    if (axis.size > 1 && axis.size < mesh.size()) bytes += comm::shm_bytes(axis.size);
  return bytes;
}

// Whole, and then cut tensor by tensor: the part, its copy in shared memory, and the whole that goes.
static std::int64_t model_bytes(const std::vector<Kept>& kept, std::int64_t buffers) {
  std::int64_t now = buffers;
  for (const Kept& each : kept) now += each.whole;
  std::int64_t most = now;
  for (const Kept& each : kept) {
    if (each.is_part()) most = std::max(most, now + each.part + each.bytes());
    now += each.bytes() - each.whole;
  }
  return most;
}

// A model that is made in float32, and then becomes bfloat16 tensor by tensor.
static std::int64_t conversion_bytes(const std::vector<Kept>& kept, std::int64_t buffers) {
  std::int64_t all = buffers, largest = buffers;
  for (const Kept& each : kept) {
    all += each.whole;
    largest = std::max(largest, each.whole);
  }
  return 2 * all + largest;
}

// Whole again, tensor by tensor: what was gathered is copied to where the model has it, and the part goes.
static std::int64_t end_bytes(const std::vector<Kept>& kept, std::int64_t buffers) {
  std::int64_t now = buffers;
  for (const Kept& each : kept) now += each.bytes();
  std::int64_t most = now;
  for (const Kept& each : kept) {
    if (!each.is_part()) continue;
    const std::int64_t again = each.is_offloaded ? 0 : each.whole;
    most = std::max(most, now + each.whole + std::max(again, each.gathering()));
    now += again - each.bytes();
  }
  return most;
}

// What a checkpoint is written from: each rank gathers all that it keeps in part.
static std::int64_t gathered_bytes(const std::vector<Kept>& kept) {
  std::int64_t bytes = 0, most = 0;
  for (const Kept& each : kept) {
    if (!each.is_part()) continue;
    bytes += each.whole;
    most = std::max(most, bytes + each.gathering());
  }
  return most;
}

// How large what oneDNN's LSTM keeps will be only the library knows: a capture runs such a layer once, whole.
static std::int64_t capture_bytes(const ir::Graph& graph, int threads) {
  program::Types types;
  for (const auto& value : graph.values) types.push_back(value.type);
  std::int64_t most = 0;
  for (const ir::Node& node : graph.nodes) {
    if (node.op != "aten::mkldnn_rnn_layer") continue;
    const program::Call call = program::call_of(node);
    std::int64_t bytes = program::workspace_bytes(call, types, threads);
    for (const auto input : program::inputs_of(call)) bytes += ir::bytes_of(types.at(input.index));
    for (const auto& output : node.outputs)
      if (output) bytes += ir::bytes_of(types.at(output->index));
    most = std::max(most, bytes);
  }
  return most;
}

// The batch of all ranks, where ranks share it.
static std::int64_t shared_batch_bytes(const ir::Graph& graph) {
  std::int64_t bytes = 0;
  for (const auto& source : graph.sources)
    if (const auto& value = graph.at(source.value); value.role == ir::Role::Input)
      bytes += ir::bytes_of(value.type);
  return bytes;
}

// Of what reads the model itself at the end: a text is drawn from it in one sequence, held-out batches are
// measured as large as one of all ranks.
static std::int64_t reading_bytes(const Recipe& recipe, const compile::Whole& whole, std::int64_t samples,
                                  int threads) {
  const bool is_text = recipe.dataset.name == DatasetName::Text;
  if (is_text && recipe.sample.tokens == 0) return 0;
  ir::Graph forward = whole.graph;
  std::erase_if(forward.results, [](const ir::Result& result) { return result.role != ir::Role::Loss; });
  rewrite::Counts counts;
  const program::Memory memory =
      program::memory_of(program::lower(rewrite::remove_dead_code(std::move(forward), counts)), threads);
  const auto bytes =
      static_cast<double>(memory.peak[MemoryKind::Activations] + memory.peak[MemoryKind::Workspace]);
  const auto prompt = std::max(std::ssize(recipe.sample.prompt), std::ssize(recipe.sample.prompt_tokens));
  const double share = is_text ? static_cast<double>(prompt + recipe.sample.tokens) /
                                     static_cast<double>(samples * recipe.training.seq_len)
                               : 1;
  constexpr double kVariables = 2;  // eager keeps what its functions have in variables
  return static_cast<std::int64_t>(kVariables * share * bytes);
}

static std::int64_t input_bytes(const program::Program& program) {
  std::int64_t bytes = 0;
  for (const auto& source : program.sources)
    if (source.role == ir::Role::Input) bytes += ir::bytes_of(program.types.at(source.slot.index));
  return bytes;
}

static bool is_staged(const Parallelism& parallelism) {
  return compile::num_stages_of(parallelism.plan, parallelism.mesh) > 1;
}

// Of a pipeline: what other micro-batches keep for backward while one runs, and copies on their way.
static std::int64_t in_flight_bytes(const Forecast& forecast, const Parallelism& parallelism,
                                    std::int64_t num_microbatches, int rank) {
  const auto& [mesh, plan] = std::tie(parallelism.mesh, parallelism.plan);
  const auto count = static_cast<std::size_t>(num_microbatches);
  const auto timeline =
      compile::timeline_of(plan, compile::pipeline_ranks_of(plan, mesh), static_cast<int>(num_microbatches));
  const int place = mesh.coordinate(rank, mesh.axis(plan.pipeline_axis));
  const std::int64_t held = schedule::most_held(timeline)[static_cast<std::size_t>(place)].backward;
  std::int64_t sent = 0;  // of a micro-batch
  for (const auto& segment : forecast.program.segments)
    for (const auto& instruction : segment.instructions)
      if (const auto* compute = std::get_if<program::Compute>(&instruction);
          compute != nullptr && compute->op == "shoal::send")
        for (const auto input : program::inputs_of(program::call_of(*compute)))
          sent += (ir::bytes_of(forecast.program.types.at(input.index)) + 4095) / 4096 * 4096;
  // By segment, over what there was before it: at most while it runs, and when it has.
  const std::int64_t sources = forecast.step.sources.total();
  std::vector<program::MemoryUse> changes;
  std::int64_t before = sources;
  for (const auto& uses : forecast.step.uses) {
    std::int64_t after = uses.empty() ? before : uses.back().after, peak = after;
    for (const program::MemoryUse& use : uses) peak = std::max(peak, use.peak);
    changes.push_back({.peak = peak - before, .after = after - before});
    before = after;
  }
  std::vector<std::int64_t> kept(count);
  std::vector<std::size_t> num_run(count);
  std::int64_t all = 0, most = 0;
  const std::vector<const program::Program*> programs(count, &forecast.program);
  for (const auto& [program, segment, microbatch] : program::runs_of(timeline, place, programs)) {
    const auto i = static_cast<std::size_t>(microbatch);
    most = std::max(most, all + changes[segment].peak);
    all += changes[segment].after;
    kept[i] += changes[segment].after;
    if (++num_run[i] == changes.size()) all -= std::exchange(kept[i], 0);
  }
  most -= forecast.step.peak.total() - sources;  // of one alone, which is counted
  std::int64_t scalars = 0;
  for (const auto& source : forecast.program.sources)
    if (source.role == ir::Role::Scalar)
      scalars += ir::bytes_of(forecast.program.types.at(source.slot.index));
  // Of each send as many copies as the rank may be ahead of who receives, and one that has gone.
  return most + std::min(num_microbatches, held + 1) * sent + num_microbatches * scalars;
}

compile::Whole update_of_sums(const compile::Whole& microbatch) {
  compile::Settings settings = microbatch.settings;
  settings.then = compile::Then::UpdateSums;
  settings.stages = microbatch.stages.owners.empty() ? nullptr : &microbatch.stages;
  settings.print = {};
  return compile::compile_whole(compile::graph_of_sums(microbatch.graph, microbatch.plan.precision.master),
                                microbatch.plan, microbatch.mesh, settings);
}

static Update on_rank(const compile::Whole& sums, int rank, int threads) {
  const auto made = compile::compile_local(sums, rank);
  return {program::memory_of(made.program, threads), kept_of(made.whole, rank, ir::Role::OptimizerState)};
}

Forecast forecast_of(const Recipe& recipe, const compile::Whole& whole, std::int64_t captured, int rank,
                     int threads, const compile::Whole* sums) {
  Forecast forecast;
  auto compiled = compile::compile_local(whole, rank);
  forecast.program = std::move(compiled.program);
  forecast.local = std::move(compiled.local);
  forecast.step = program::memory_of(forecast.program, threads);
  const program::Memory& step = forecast.step;
  const Parallelism parallelism = parallelism_of(recipe, whole.mesh.size());
  const auto [microbatch, num_microbatches] = sizes_of(recipe, parallelism);
  const std::vector<Kept> kept = kept_of(whole, rank, ir::Role::Parameter);
  const std::int64_t batch = input_bytes(forecast.program), buffers = step.sources[MemoryKind::Buffers];
  const std::int64_t alone = communicator_bytes(whole.mesh, whole.plan.overlap_bytes.value_or(0) > 0);
  forecast.batches = (recipe.dataset.prefetch + 1) * num_microbatches * batch - batch;
  forecast.communicator = alone + rounding_of(kept);
  std::int64_t made = model_bytes(kept, buffers);
  if (recipe.precision.master != rewrite::Master::Float32)
    made = std::max(made, conversion_bytes(kept, buffers));
  forecast.phases.push_back({"the model", made + alone, "before it is cut into parts"});
  std::int64_t parameters = buffers, all = buffers;
  for (const Kept& each : kept) {
    parameters += each.bytes();
    all += each.is_offloaded ? 0 : each.whole;
  }
  if (const std::int64_t capture = capture_bytes(whole.graph, threads); capture > 0)
    forecast.phases.push_back(
        {"capture", parameters + alone + batch + forecast.batches + capture, "an LSTM's layer"});
  if (counts_flops(recipe) && rank == 0) {
    const std::int64_t width = recipe.training.dtype == FloatType::Float64 ? 8 : 4;
    forecast.phases.push_back({"the measure of the machine",
                               parameters + alone + 2 * kMeasuredMatrix * kMeasuredMatrix * width + kSeed,
                               "products of matrices"});
  }
  std::int64_t& beside = forecast.beside;
  beside = forecast.batches + forecast.communicator + step.sources[MemoryKind::Constants] + kSeed;
  std::vector<Kept> state = kept_of(whole, rank, ir::Role::OptimizerState);
  const std::int64_t in_flight =
      is_staged(parallelism) ? in_flight_bytes(forecast, parallelism, num_microbatches, rank) : 0;
  if (num_microbatches > 1 || is_staged(parallelism)) {
    const auto [update, its_state] = on_rank(sums == nullptr ? update_of_sums(whole) : *sums, rank, threads);
    forecast.phases.push_back(
        {"the update", update.peak.total() + buffers + beside, "of the gradients' sums"});
    beside += update.sources[MemoryKind::OptimizerState] + buffers + kSeed;  // as they were before the step
    state = its_state;
  }
  // The batch may lie otherwise than the one that was recorded: then it is copied.
  forecast.phases.push_back({"a spot check",
                             step.sources.total() + batch + captured + kSmall + beside +
                                 (data_ranks_of(parallelism) > 1 ? shared_batch_bytes(whole.graph) : 0),
                             "the batch of all ranks"});
  forecast.phases.push_back(
      {"a step", step.peak.total() + in_flight + beside, program::place_of_peak(forecast.program, step)});
  if (recipe.checkpoint.enable)
    forecast.phases.push_back({"a checkpoint",
                               step.end.total() + beside + gathered_bytes(kept) + gathered_bytes(state),
                               "the model and the optimizer's state, whole on each rank"});
  // All parameters at once, for what reads the model itself.
  const std::int64_t end = whole.mesh.size() > 1 ? end_bytes(kept, buffers) : 0;
  forecast.phases.push_back({"the end",
                             alone + std::max(end, all + reading_bytes(recipe, whole, microbatch, threads)),
                             "the model, whole on each rank"});
  return forecast;
}

Forecast forecast_of(const Recipe& recipe, const Parallelism& parallelism, int rank, int threads) {
  const torch::nn::AnyModule model = hollow_model(recipe);
  const StepSizes sizes = sizes_of(recipe, parallelism);
  const OptimizerPart part{{}, optimizer_of(recipe)};
  compile::Settings settings = settings_of(recipe, part, "");
  settings.plan_name = parallelism.plan_name;
  settings.verifies = false;
  if (sizes.num_microbatches > 1 || is_staged(parallelism)) settings.then = compile::Then::Accumulate;
  auto [graph, captured] = captured_step(recipe, model, sizes.microbatch);
  const auto whole = compile::compile_whole(std::move(graph), parallelism.plan, parallelism.mesh, settings);
  return forecast_of(recipe, whole, captured, rank, threads);
}

int threads_of_rank(int ranks_of_this_host) {
  const int cores = at::get_num_threads();
  if (ranks_of_this_host == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return cores;
  return std::max(1, cores / ranks_of_this_host);
}

std::vector<rewrite::RankClass> kinds_of_ranks(const compile::Whole& whole) {
  return rewrite::rank_classes(whole.placed, whole.plan.pipeline_axis);
}

void check_device_of_limit(const Recipe& recipe) {
  SHOAL_CHECK(recipe.training.device == DeviceType::CPU, InvalidInput, "memory.limit is ",
              recipe.memory.limit,
              " of main memory, and training.device is cuda, whose memory is not predicted. Remedy: "
              "--memory.limit=\"\"");
}

void check_limit(const Recipe& recipe, const Phase& largest) {
  if (recipe.memory.limit.empty()) return;
  check_device_of_limit(recipe);
  const std::int64_t limit = parse_bytes(recipe.memory.limit).value();
  const std::int64_t least = largest.bytes;
  constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
  SHOAL_CHECK(least <= limit, Infeasible, "memory.limit is ", recipe.memory.limit, ", and a rank takes ",
              least, " bytes at most, for ", largest.name, ": ", largest.where, ". ",
              (least + kMebibyte - 1) / kMebibyte,
              "MiB would do. Remedy: that limit, memory.auto, a smaller training.local_batch_size, or more "
              "ranks that share "
              "layers or store parts (parallelism, zero.stage)");
}

std::string to_text(const Forecast& forecast) {
  const program::Memory& step = forecast.step;
  std::string text = concat("memory of a rank: ", human_bytes(forecast.largest().bytes), " at most, for ",
                            forecast.largest().name, "\n");
  for (const Phase& phase : forecast.phases)
    text += concat("  for ", phase.name, ": ", human_bytes(phase.bytes), ", ", phase.where, '\n');
  text += "  of a step, where it takes most: ";
  for (std::size_t kind = 0; kind < program::kMemoryKinds; ++kind)
    text += concat(kind == 0 ? "" : ", ", program::name_of(static_cast<MemoryKind>(kind)), ' ',
                   human_bytes(step.peak.bytes[kind]));
  return text + concat(", batches made ahead ", human_bytes(forecast.batches), ", communicator ",
                       human_bytes(forecast.communicator), '\n');
}

}  // namespace shoal::cli
