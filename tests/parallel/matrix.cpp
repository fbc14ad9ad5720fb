// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/matrix.h"

#include <ATen/Parallel.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/cost/cluster.h"
#include "shoal/simulate/programs.h"
#include "shoal/train/pipeline.h"
#include "shoal/train/trainer.h"
#include "tests/parallel/counted.h"

namespace shoal::matrix {

static constexpr int kSteps = 3;
static constexpr double kDropout = 0.25;
static constexpr double kClipNorm = 0.5;
static constexpr std::uint64_t kSeed = 3;

static Trainer trainer_of(const cases::Net& net, const Optimizer& optimizer,
                          std::optional<Parallelism> parallelism, observe::Trace* trace = nullptr) {
  TrainerOptions options{
      .clip_norm = kClipNorm, .seed = kSeed, .trace = trace, .parallelism = std::move(parallelism)};
  return Trainer(net.module, net.loss, optimizer, options);
}

std::string plan_text(const std::string& name) {
  std::ifstream file("recipes/plans/" + name + ".plan");
  SHOAL_CHECK(file.good(), InvalidInput, "matrix: there is no recipes/plans/", name, ".plan");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<Strategy> strategies(const cases::ModelCase& model, int ranks) {
  std::vector<Strategy> all = {{.name = "data parallel", .replicate = ranks},
                               {.name = "ZeRO-1", .shard = ranks, .zero_stage = 1},
                               {.name = "ZeRO-2", .shard = ranks, .zero_stage = 2},
                               {.name = "ZeRO-3", .shard = ranks, .zero_stage = 3}};
  const std::string name = model.name;
  const bool has_plans = name == "gpt2" || name == "llama";
  const std::string tensor = name + "_tensor", sequence = name + "_sequence";
  if (has_plans) {
    all.push_back({.name = "tensor", .tensor = ranks, .plan = tensor});
    all.push_back({.name = "tensor and sequence", .tensor = ranks, .plan = sequence});
  }
  all.push_back({.name = "found", .tensor = ranks});
  for (int inner = 2; inner < ranks; ++inner) {
    if (ranks % inner != 0) continue;
    const int outer = ranks / inner;
    all.push_back({.name = "hybrid", .replicate = outer, .shard = inner});
    all.push_back({.name = "hybrid, ZeRO-1", .replicate = outer, .shard = inner, .zero_stage = 1});
    all.push_back({.name = "data x found", .replicate = outer, .tensor = inner});
    all.push_back({.name = "ZeRO-3 x found", .shard = outer, .tensor = inner});
    if (!has_plans) continue;
    all.push_back({.name = "data x tensor", .replicate = outer, .tensor = inner, .plan = tensor});
    all.push_back({.name = "ZeRO-3 x tensor", .shard = outer, .tensor = inner, .plan = tensor});
    all.push_back({.name = "ZeRO-3 x sequence", .shard = outer, .tensor = inner, .plan = sequence});
    if (outer % 2 == 0 && outer > 2)
      all.push_back({.name = "hybrid x sequence",
                     .replicate = 2,
                     .shard = outer / 2,
                     .tensor = inner,
                     .plan = sequence});
  }
  return all;
}

// The micro-batches of each step; every second one has a sample less than the others.
static std::vector<std::vector<Batch>> batches_of(const cases::ModelCase& model, int microbatches) {
  torch::manual_seed(9);
  std::vector<std::vector<Batch>> steps(kSteps);
  for (auto& step : steps)
    for (int i = 0; i < microbatches; ++i)
      step.push_back(map_tensors(model.batch(at::kDouble), [i](const std::string&, const at::Tensor& tensor) {
        return tensor.narrow(0, 0, tensor.size(0) - i % 2);
      }));
  return steps;
}

static Batch part_of(const Batch& batch, const sharding::Mesh& mesh, int rank) {
  return map_tensors(batch, [&](const std::string&, const at::Tensor& tensor) {
    const auto [begin, end] = samples_of(mesh, rank, tensor.size(0));
    return tensor.narrow(0, begin, end - begin).clone();
  });
}

static StepResult take(Trainer& trainer, const std::vector<Batch>& microbatches) {
  return microbatches.size() == 1 ? trainer.step(microbatches[0]) : trainer.step_over(microbatches);
}

// Of the pipeline.
static compile::Plan stages_of(const Strategy& strategy) {
  return {.schedule = strategy.schedule,
          .stages_per_rank = strategy.stages_per_rank,
          .microbatches = strategy.cut};
}

// A pipeline cuts a single batch, by itself into as many micro-batches as it has stages, or as there are samples.
static std::vector<Batch> cut_up(std::vector<Batch> microbatches, const Strategy& strategy) {
  if (microbatches.size() > 1 || strategy.pipeline == 1) return microbatches;
  const int stages = compile::timeline_of(stages_of(strategy), strategy.pipeline, 1).num_stages();
  const std::int64_t count =
      strategy.cut != 0 ? strategy.cut : train::most_microbatches(microbatches[0], stages, {});
  std::vector<Batch> parts;
  for (std::int64_t i = 0; i < count; ++i)
    parts.push_back(map_tensors(microbatches[0], [&](const std::string&, const at::Tensor& tensor) {
      return at::tensor_split(tensor, count)[static_cast<std::size_t>(i)];
    }));
  return parts;
}

// The first call that is not what the program says.
static std::string difference(const Sent& counted, const Sent& said, int rank, std::size_t step) {
  if (counted == said) return "";
  const std::string where = concat("rank ", rank, ", step ", step, ": ");
  std::set<std::vector<int>> groups;
  for (const auto* sent : {&counted, &said})
    for (const auto& [ranks_of_group, calls] : sent->calls) groups.insert(ranks_of_group);
  const auto calls_in = [](const Sent& sent, const std::vector<int>& group) {
    const auto found = sent.calls.find(group);
    return found == sent.calls.end() ? std::vector<std::string>{} : found->second;
  };
  for (const auto& group : groups) {
    const auto is = calls_in(counted, group), wanted = calls_in(said, group);
    for (std::size_t i = 0; i < std::max(is.size(), wanted.size()); ++i)
      if (i >= is.size() || i >= wanted.size() || is[i] != wanted[i])
        return concat(where, "message ", i, " of its group is ", i < is.size() ? is[i] : "none",
                      ", and the program says ", i < wanted.size() ? wanted[i] : "none");
  }
  return concat(where, counted.bytes, " bytes, and the program says ", said.bytes);
}

namespace {

// What a rank has done in a step, and what it has run.
struct Played {
  observe::Trace trace;
  std::vector<program::Program> programs;
};

}  // namespace

static std::vector<simulate::Run> runs_of(const Played& played, const sharding::Mesh& mesh, int rank,
                                          const Strategy& strategy) {
  std::vector<const program::Program*> programs;
  for (const program::Program& program : played.programs) programs.push_back(&program);
  std::vector<simulate::Run> runs;
  if (strategy.pipeline > 1) {
    const int count = static_cast<int>(programs.size()) - 1;
    runs = program::runs_of(compile::timeline_of(stages_of(strategy), strategy.pipeline, count),
                            mesh.coordinate(rank, mesh.axis("pipeline")),
                            {programs.begin(), programs.end() - 1});
    simulate::append_runs(runs, *programs.back(), count);
  } else {
    for (std::size_t i = 0; i < programs.size(); ++i)
      simulate::append_runs(runs, *programs[i], static_cast<int>(i));
  }
  return runs;
}

// By stream, in the order of starts.
static std::map<std::string, std::vector<std::string>> starts_of(std::vector<observe::Event> events) {
  std::ranges::stable_sort(events, {}, &observe::Event::begin);
  std::map<std::string, std::vector<std::string>> starts;
  for (const observe::Event& event : events)
    if (event.stream != "trainer" && event.name != "wait") starts[event.stream].push_back(event.name);
  return starts;
}

// The first start of a rank that is not where the simulator has it.
static std::string difference(const std::vector<Played>& all, const sharding::Mesh& mesh,
                              const Strategy& strategy) {
  cost::Cluster cluster;
  cluster.kinds["any"] = {
      .name = "any", .memory = 1, .bandwidth = {1e9, {}}, .arithmetic = {{DType::Float64, {1e9, {}}}}};
  cluster.hosts = {{"any", mesh.size(), 1}};
  cluster.inside = {.latency = 1e-6, .bandwidth = 1e8};
  std::vector<simulate::Ranks> kinds;
  for (int rank = 0; rank < mesh.size(); ++rank)
    kinds.push_back({{rank}, runs_of(all[static_cast<std::size_t>(rank)], mesh, rank, strategy)});
  const simulate::Tasks tasks = simulate::tasks_of(kinds, mesh, cluster);
  const observe::Trace trace = simulate::trace_of(tasks, simulate::play(tasks));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::vector<observe::Event> events;
    for (const observe::Event& event : trace.events)
      if (event.rank == rank && event.stream.find(" to ") == std::string::npos) events.push_back(event);
    auto wanted = starts_of(std::move(events));
    auto seen = starts_of(all[static_cast<std::size_t>(rank)].trace.events);
    for (const auto& [stream, starts] : wanted) seen.try_emplace(stream);
    for (const auto& [stream, starts] : seen) {
      const auto& said = wanted[stream];
      const auto [is, should] = std::ranges::mismatch(starts, said);
      if (is != starts.end() || should != said.end())
        return concat("rank ", rank, ", start ", is - starts.begin(), " on ", stream, " is ",
                      is == starts.end() ? "none" : *is, ", and the simulator has ",
                      should == said.end() ? "none" : *should);
    }
  }
  return "";
}

static cases::Net made(const cases::ModelCase& model) {
  cases::Net net = model.make(kDropout);
  net.module->to(at::kDouble);
  return net;
}

// The strategy's run, held against these records.
static Outcome compared(const cases::ModelCase& model, const Strategy& strategy, const Optimizer& optimizer,
                        const std::vector<train::Record>& wanted) {
  const auto batches = batches_of(model, strategy.microbatches);
  const int ranks = strategy.ranks();
  const auto mesh = mesh_of(ranks, strategy.replicate, strategy.shard, strategy.tensor, strategy.pipeline);
  std::vector<cases::Net> nets;
  for (int rank = 0; rank < ranks; ++rank) nets.push_back(made(model));
  Outcome outcome;
  std::mutex mutex;  // guards outcome
  try {
    std::vector<Sent> sent(static_cast<std::size_t>(ranks));
    std::vector<Played> all_played(static_cast<std::size_t>(ranks));
    auto communicators = comm::inproc(ranks);
    for (std::size_t rank = 0; rank < communicators.size(); ++rank)
      communicators[rank] = counted(std::move(communicators[rank]), sent[rank]);
    comm::run_as_threads(std::move(communicators), [&](comm::Communicator& world) {
      at::set_num_threads(1);
      compile::Plan plan = stages_of(strategy);
      if (!strategy.plan.empty()) plan.lines = compile::plan_from_text(plan_text(strategy.plan)).lines;
      plan.zero_stage = strategy.zero_stage;
      plan.bucket_bytes = 4096;
      // Messages go on beside what computes in every second cell, though here nobody is faster for it.
      if ((strategy.ranks() / 2 + strategy.microbatches) % 2 == 0)
        plan.overlap_bytes = plan.prefetch_bytes = 16384;
      Parallelism parallelism{.mesh = mesh, .world = &world, .plan = plan, .limit = std::chrono::seconds(60)};
      Played& played = all_played[static_cast<std::size_t>(world.rank())];
      Trainer trainer =
          trainer_of(nets[static_cast<std::size_t>(world.rank())], optimizer, parallelism, &played.trace);
      for (std::size_t step = 0; step < batches.size(); ++step) {
        Sent& mine = sent[static_cast<std::size_t>(world.rank())];
        mine = {.step = static_cast<int>(step) + 1};
        std::vector<Batch> parts;
        for (const Batch& batch : batches[step]) parts.push_back(part_of(batch, mesh, world.rank()));
        played.trace.events.clear();
        const auto result = take(trainer, parts);
        played.programs.clear();
        for (const program::Program* program : trainer.ran()) played.programs.push_back(*program);
        Sent counted = std::exchange(mine, {});
        Sent said{.step = counted.step};
        for (const program::Program* program : trainer.ran()) add_said(*program, mesh, world.rank(), said);
        if (strategy.pipeline > 1) {  // several micro-batches are under way at once
          for (Sent* each : {&counted, &said})
            for (auto& [group, calls] : each->calls) std::ranges::sort(calls);
        }
        const auto comparison = train::compare(train::record_of(trainer, result), wanted[step], 1e-9);
        const std::lock_guard lock(mutex);
        for (const auto& [group, calls] : counted.calls) outcome.messages += std::ssize(calls);
        outcome.bytes += counted.bytes;
        if (outcome.unsaid.empty()) outcome.unsaid = difference(counted, said, world.rank(), step);
        if (comparison.largest > outcome.worst.largest) outcome.worst = comparison;
      }
    });
    outcome.unplayed = difference(all_played, mesh, strategy);
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

Outcome run(const cases::ModelCase& model, const Strategy& strategy, const Optimizer& optimizer) {
  std::vector<train::Record> wanted;
  Trainer alone = trainer_of(made(model), optimizer, {});
  for (const auto& step : batches_of(model, strategy.microbatches))
    wanted.push_back(train::record_of(alone, take(alone, cut_up(step, strategy))));
  return compared(model, strategy, optimizer, wanted);
}

Outcome run_against_eager(const cases::ModelCase& model, const Strategy& strategy) {
  constexpr double kRate = 0.05;
  std::vector<train::Record> wanted;
  const cases::Net net = made(model);
  torch::optim::SGD eager(net.module->parameters(), torch::optim::SGDOptions(kRate));
  const auto copies = [](const auto& items, const auto& tensor_of) {
    std::map<std::string, at::Tensor> made_copies;
    for (const auto& item : items)
      if (const at::Tensor tensor = tensor_of(item.value()); tensor.defined())
        made_copies.emplace(item.key(), tensor.detach().clone());
    return made_copies;
  };
  const auto itself = [](const at::Tensor& tensor) { return tensor; };
  std::int64_t step = 0;
  for (const auto& microbatches : batches_of(model, 1)) {
    eager.zero_grad();
    at::Tensor loss;
    {
      const capture::EagerRandom random(kSeed, ++step);
      loss = net.loss(microbatches[0]);
    }
    loss.backward();
    train::Record record{.loss = loss.item<double>(), .gradients = {}, .state = {}};
    record.gradients =
        copies(net.module->named_parameters(), [](const at::Tensor& tensor) { return tensor.grad(); });
    record.grad_norm = torch::nn::utils::clip_grad_norm_(net.module->parameters(), kClipNorm);
    eager.step();
    record.state.model = copies(net.module->named_parameters(), itself);
    record.state.model.merge(copies(net.module->named_buffers(), itself));
    wanted.push_back(std::move(record));
  }
  return compared(model, strategy, SGD{.lr = kRate}, wanted);
}

}  // namespace shoal::matrix
