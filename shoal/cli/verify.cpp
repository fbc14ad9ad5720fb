// SPDX-License-Identifier: Apache-2.0
// shoal verify: trains a recipe on one device and on ranks that are threads of this process, on the same
// small random batches, and compares after every step all there is to compare.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/cli/ps_servers.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/ps/client.h"
#include "shoal/rewrite/place.h"
#include "shoal/train/verify.h"

namespace shoal::cli {

using train::Comparison;
using train::Record;
using Microbatches = std::vector<Batch>;

namespace {

struct Strategy {
  Parallelism parallelism;
  StepSizes sizes;
};

// What came of one strategy.
struct Verdict {
  std::vector<Comparison> steps;       // the worst of all ranks
  std::vector<double> losses;          // of one device
  std::string where;                   // the first value that differs, and what made it; empty: none does
  std::vector<std::uint64_t> digests;  // of tables on servers

  double error() const {
    double most = 0;
    for (const Comparison& step : steps) most = std::max(most, step.error);
    return most;
  }
};

}  // namespace

static std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

static double tolerance_of(const Recipe& recipe) {
  return train::tolerance_of(recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat);
}

static StepResult take(Trainer& trainer, const Microbatches& microbatches, const Recipe& recipe) {
  const StepResult result =
      microbatches.size() == 1 ? trainer.step(microbatches[0]) : trainer.step_over(microbatches);
  if (recipe.ps.day_steps > 0 && result.step % recipe.ps.day_steps == 0)
    trainer.end_day(static_cast<std::uint32_t>(result.step / recipe.ps.day_steps));
  return result;
}

static Microbatches parts_of(const Microbatches& microbatches, const Parallelism& parallelism, int rank,
                             std::int64_t samples) {
  Microbatches parts;
  const sharding::Range range = samples_of(parallelism.mesh, rank, samples, parallelism.plan);
  for (const Batch& batch : microbatches) parts.push_back(part_of(batch, range));
  return parts;
}

// Of all that differs what the step's graph makes first: later values may differ because of it.
static std::string first_of(const Comparison& comparison, const ir::Graph& graph) {
  constexpr std::size_t kLast = ~std::size_t{0};
  std::string first = comparison.worst;
  std::size_t earliest = kLast;
  for (const train::Difference& difference : comparison.differences)
    for (const auto& result : graph.results) {
      if (result.name != difference.name || result.role != difference.role) continue;
      const auto producer = graph.at(result.value).producer;
      const std::size_t at = producer ? producer->index : 0;
      if (!producer || at >= earliest) continue;
      earliest = at;
      const ir::Node& node = graph.at(*producer);
      first = concat(ir::name_of(difference.role), ' ', difference.name, ", made by ", node.op,
                     " in module \"", node.module, "\", ", ir::name_of(node.phase));
    }
  return first;
}

// --- Of recipes with [[tables]].

// Ids without a bound become few, so that a batch has some of them twice.
static void bound_ids(Recipe& recipe) {
  const auto few = [](std::int64_t& ids) { ids = std::min<std::int64_t>(ids, 300); };
  std::visit(
      [&](auto& config) {
        if constexpr (requires { config.ids; }) few(config.ids);
        if constexpr (requires { config.words; }) few(config.words);
        if constexpr (requires { config.table_rows; })
          for (std::int64_t& rows : config.table_rows) few(rows);
      },
      recipe.model.config);
  for (TableSettings& table : recipe.tables) table.initial = RowsBegin::Model;
}

// The optimizer of a dense parameter that does what a table's does; nothing where it would move rows that a step has
// not read, or rows come and go.
static std::optional<Optimizer> dense_optimizer_of(const TableSettings& table) {
  if (table.l2 != 0 || table.dtype != RowType::Float32 || table.scored) return std::nullopt;
  if (table.admission != ps::AdmissionRule::Always) return std::nullopt;
  if (table.optimizer == ps::RowRule::Sgd) return SGD{.lr = table.lr};
  if (table.optimizer == ps::RowRule::Adagrad && table.start == 0)
    return Adagrad{.lr = table.lr, .eps = table.eps};
  return std::nullopt;
}

// One device: with all in memory, where each table's optimizer has a dense counterpart; else with tables in the
// process.
static Trainer reference_of(const Recipe& recipe, const torch::nn::AnyModule& model) {
  std::vector<OptimizerPart> parts;
  for (const TableSettings& table : recipe.tables) {
    const auto optimizer = dense_optimizer_of(table);
    if (!optimizer) return make_trainer(recipe, model, nullptr, {});
    parts.push_back(
        {[pattern = table.parameters](const std::string& name) { return rewrite::matches(pattern, name); },
         *optimizer});
  }
  if (parts.empty()) return make_trainer(recipe, model, nullptr, {});
  parts.push_back({{}, optimizer_of(recipe)});
  return make_dense_trainer(recipe, model, std::move(parts));
}

// What there is to compare of a step: of a table its rows.
static Record record_of(Trainer& trainer, const StepResult& result, const Recipe& recipe,
                        const torch::nn::AnyModule& model) {
  Record record = train::record_of(trainer, result);
  const compile::Plan plan = {.tables = table_specs(recipe)};
  for (const auto& parameter : model.ptr()->named_parameters()) {
    const std::string& name = parameter.key();
    if (!compile::is_table(plan, name)) continue;
    if (!record.state.model.contains(name)) record.state.model.emplace(name, trainer.rows(name));
    record.gradients.erase(name);
    std::erase_if(record.state.optimizer,
                  [&](const auto& each) { return each.first.starts_with(name + "."); });
    record.state.updates.erase(name);
  }
  return record;
}

static std::size_t num_tables(const Recipe& recipe, const torch::nn::AnyModule& model) {
  const compile::Plan plan = {.tables = table_specs(recipe)};
  std::size_t count = 0;
  for (const auto& parameter : model.ptr()->named_parameters()) count += is_table(plan, parameter.key());
  return count;
}

// In this process, with so many loops in all.
class Servers {
 public:
  Servers(std::int64_t loops, const Recipe& recipe)
      : server_(key_, {.loops = static_cast<std::uint32_t>(loops),
                       .all_loops = static_cast<std::uint32_t>(loops),
                       .cold = cold_options(recipe.ps.memory, cold_folder_of(recipe) / "verify")}) {}
  std::unique_ptr<ps::Tables> client() const {
    return std::make_unique<ps::Client>(key_, server_.endpoints());
  }

 private:
  const rendezvous::Key key_ = rendezvous::make_key();
  const ps::Server server_;
};

static Verdict verify(const Recipe& recipe, const Strategy& strategy, std::int64_t servers) {
  std::vector<Microbatches> batches;
  std::uint64_t seed = static_cast<std::uint64_t>(recipe.training.seed);
  for (std::int64_t step = 0; step < recipe.verify.steps; ++step) {
    batches.emplace_back();
    for (std::int64_t i = 0; i < strategy.sizes.num_microbatches; ++i)
      batches.back().push_back(random_batch(recipe, strategy.sizes.microbatch, ++seed));
  }
  const torch::nn::AnyModule model = make_model(recipe);
  Trainer alone = reference_of(recipe, model);
  std::vector<Record> wanted;
  Verdict verdict;
  for (const Microbatches& microbatches : batches) {
    wanted.push_back(record_of(alone, take(alone, microbatches, recipe), recipe, model));
    verdict.losses.push_back(wanted.back().loss);
  }
  const sharding::Mesh& mesh = strategy.parallelism.mesh;
  std::vector<torch::nn::AnyModule> models;
  for (int rank = 0; rank < mesh.size(); ++rank) models.push_back(make_model(recipe));
  std::optional<Servers> running;
  if (!recipe.tables.empty() && servers > 0) running.emplace(servers, recipe);
  verdict.steps.resize(batches.size());
  std::mutex mutex;  // guards verdict.steps
  const int threads = at::get_num_threads();
  comm::run_as_threads(comm::inproc(mesh.size()), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    Parallelism parallelism = strategy.parallelism;
    parallelism.world = &world;
    const auto tables = running ? running->client() : nullptr;
    const torch::nn::AnyModule& own = models[static_cast<std::size_t>(world.rank())];
    Trainer trainer = make_trainer(recipe, own, nullptr, std::move(parallelism), tables.get());
    for (std::size_t step = 0; step < batches.size(); ++step) {
      const StepResult result = take(
          trainer, parts_of(batches[step], strategy.parallelism, world.rank(), strategy.sizes.microbatch),
          recipe);
      const Record record = record_of(trainer, result, recipe, own);
      Comparison comparison = train::compare(record, wanted[step], tolerance_of(recipe));
      const std::lock_guard lock(mutex);
      if (comparison.largest > verdict.steps[step].largest) verdict.steps[step] = std::move(comparison);
    }
    if (tables && world.rank() == 0)
      for (std::uint32_t table = 0; table < num_tables(recipe, own); ++table)
        verdict.digests.push_back(tables->digest(table).first);
  });
  at::set_num_threads(threads);
  const auto differs = std::ranges::find_if(verdict.steps, [](const auto& step) { return step.largest > 1; });
  if (differs != verdict.steps.end()) {
    const auto step = static_cast<std::size_t>(differs - verdict.steps.begin());
    verdict.where = concat("step ", step + 1, ": ", first_of(*differs, alone.graph(batches[step][0])));
  }
  return verdict;
}

static std::int64_t loops_of(const Recipe& recipe) { return recipe.ps.servers * recipe.ps.threads; }

static std::string described(const Strategy& strategy) {
  const Parallelism& parallelism = strategy.parallelism;
  return concat(to_text(parallelism.mesh), ", zero.stage ", parallelism.plan.zero_stage,
                parallelism.plan.lines.empty() ? "" : concat(", ", parallelism.plan_name), ", ",
                strategy.sizes.num_microbatches, " x ", strategy.sizes.microbatch, " samples");
}

// Small, and of a size that the data's ranks cannot share evenly.
static StepSizes small(StepSizes sizes, const Parallelism& parallelism) {
  const std::int64_t ranks = data_ranks_of(parallelism);
  return {.microbatch = std::min(sizes.microbatch, 2 * ranks + 1),
          .num_microbatches = std::min<std::int64_t>(sizes.num_microbatches, 2)};
}

static int divisor_of(int number_, std::mt19937_64& random) {
  std::vector<int> divisors;
  for (int i = 1; i <= number_; ++i)
    if (number_ % i == 0) divisors.push_back(i);
  return divisors[random() % divisors.size()];
}

static Strategy drawn(const Recipe& recipe, int ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const bool has_plan = !recipe.parallelism.plan.empty();
  const int tensor = has_plan ? divisor_of(ranks, random) : 1;
  const int replicate = divisor_of(ranks / tensor, random);
  const int shard = ranks / tensor / replicate;
  Strategy strategy{.parallelism = parallelism_of(recipe, ranks), .sizes = {}};
  strategy.parallelism.mesh = shoal::mesh_of(ranks, replicate, shard, tensor);
  strategy.parallelism.plan.zero_stage = shard > 1 ? static_cast<int>(random() % 5) - 1 : 0;
  strategy.parallelism.plan.bucket_bytes = std::int64_t{1} << (8 + random() % 18);
  strategy.parallelism.plan.gathers_again = random() % 2 == 0;
  const auto data = static_cast<std::uint64_t>(replicate * shard);
  strategy.sizes = {.microbatch = static_cast<std::int64_t>(data + random() % (2 * data + 2)),
                    .num_microbatches = random() % 3 == 0 ? 2 : 1};
  return strategy;
}

static int verify_drawn(const Recipe& recipe, const Options& options) {
  double most = 0;
  int failures = 0;
  for (std::int64_t i = 0; i < options.random; ++i) {
    const auto seed = static_cast<std::uint64_t>(options.seed + i);
    const Strategy strategy = drawn(recipe, options.ranks, seed);
    std::string came;
    try {
      const Verdict verdict = verify(recipe, strategy, loops_of(recipe));
      most = std::max(most, verdict.error());
      failures += !verdict.where.empty();
      came = concat("largest error ", number(verdict.error()),
                    verdict.where.empty() ? "" : ", differs first in " + verdict.where);
    } catch (const Error& error) {
      ++failures;
      came = concat("failed: ", error.what());
    }
    say(concat("seed ", seed, ": ", described(strategy), ": ", came));
  }
  say(concat("strategies that differ: ", failures, " of ", options.random));
  say(concat("largest error: ", number(most), ", allowed ", number(tolerance_of(recipe))));
  return failures == 0 ? 0 : 1;
}

int verify(const Recipe& asked, const Options& options) {
  SHOAL_CHECK(
      asked.training.device == DeviceType::CPU, InvalidInput,
      "training.device is cuda, and verify compares ranks that are threads of the processor; leave it out");
  SHOAL_CHECK(asked.ps.mode == ps::Mode::Sync, InvalidInput, "verify: ps.mode is ", name_of(asked.ps.mode),
              ", whose ranks do not wait for each other's rows: no two runs are alike. Remedy: sync");
  SHOAL_CHECK(asked.memory.limit.empty(), InvalidInput, "verify: memory.limit is ", asked.memory.limit,
              ", and all ranks are threads of one process here, which keeps no limit. Remedy: "
              "--memory.limit=\"\", and shoal plan for what a rank takes");
  Recipe recipe = asked;
  const bool says_dtype = std::ranges::any_of(
      options.words, [](const std::string& word) { return word.starts_with("--training.dtype="); });
  if (!says_dtype) recipe.training.dtype = FloatType::Float64;
  bound_ids(recipe);
  say(concat("dtype:    ", recipe.training.dtype == FloatType::Float64 ? "float64" : "float32",
             says_dtype ? "" : ", since nothing else is said; --training.dtype=float32 is the other one",
             "; errors of at most ", number(tolerance_of(recipe)), " are allowed"));
  SHOAL_CHECK(
      asked.precision.compute == "float32" || !says_dtype || recipe.training.dtype == FloatType::Float64,
      InvalidInput, "verify: precision.compute is ", asked.precision.compute,
      ", and each rounding of it is larger than what is allowed. Remedy: leave it out; what ranks do is the "
      "same in each precision");
  SHOAL_CHECK(
      asked.precision.reduce == "float32" || !says_dtype || recipe.training.dtype == FloatType::Float64,
      InvalidInput, "verify: precision.reduce is ", asked.precision.reduce,
      ", and gradients that are rounded so differ by more than is allowed. Remedy: leave it out");
  SHOAL_CHECK(
      asked.precision.master == rewrite::Master::Float32, InvalidInput, "verify: precision.master is ",
      name_of(asked.precision.master),
      ", whose weights are rounded, more than is allowed. Remedy: leave it out; what ranks do is the same "
      "with it");
  if (options.random > 0) return verify_drawn(recipe, options);
  Strategy strategy{.parallelism = parallelism_of(recipe, options.ranks), .sizes = {}};
  strategy.sizes = small(sizes_of(recipe, strategy.parallelism), strategy.parallelism);
  say(concat("strategy: ", described(strategy)));
  const Verdict verdict = verify(recipe, strategy, loops_of(recipe));
  for (std::size_t step = 0; step < verdict.steps.size(); ++step) {
    const Comparison& comparison = verdict.steps[step];
    say(concat("step ", step + 1, ": loss ", number(verdict.losses[step]), ", largest error ",
               number(comparison.error), comparison.worst.empty() ? "" : ", of " + comparison.worst,
               comparison.num_by_kind == 0
                   ? ""
                   : concat("; ", comparison.num_by_kind, " tensors pass by the scale of their kind")));
  }
  if (!verdict.where.empty()) say(concat("differs first in ", verdict.where));
  say(concat("largest error: ", number(verdict.error()), ", allowed ", number(tolerance_of(recipe))));
  bool is_same = true;
  if (loops_of(recipe) > 1) {
    is_same = verify(recipe, strategy, 1).digests == verdict.digests;
    say(concat("servers: ", recipe.ps.servers, ", with ", recipe.ps.threads, " loops each, have ",
               is_same ? "the rows of one loop, bit for bit" : "other rows than one loop"));
  }
  return verdict.where.empty() && is_same ? 0 : 1;
}

}  // namespace shoal::cli
