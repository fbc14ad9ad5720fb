// SPDX-License-Identifier: Apache-2.0
// What saves memory changes no bit: what backward makes again is what forward made, and what is offloaded is
// read where it lies. Memory falls by what is said.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/sanitized.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/program/memory.h"
#include "shoal/train/trainer.h"
#include "tests/parallel/cover.h"
#include "tests/parallel/matrix.h"

namespace saved_memory_test {

using namespace shoal;

namespace {

struct Trained {
  TrainingState state;
  double loss = 0;
  std::int64_t messages = 0;
  std::size_t instructions = 0;  // of all ranks
  std::int64_t activations = 0;  // at once, of the rank that has most
  std::int64_t peak = 0;         // of all kinds, likewise
};

}  // namespace

static std::int64_t activations_of(const program::Program& program) {
  std::int64_t most = 0;
  for (const auto& segment : program::memory_of(program, 1).activations)
    for (const auto& use : segment) most = std::max(most, use.peak);
  return most;
}

// Three steps in float32, of rank 0. `how` is lines of a plan.
static Trained trained(const cases::ModelCase& model, const matrix::Strategy& strategy,
                       const std::string& how) {
  const auto mesh =
      mesh_of(strategy.ranks(), strategy.replicate, strategy.shard, strategy.tensor, strategy.pipeline);
  std::vector<cases::Net> nets;
  for (int rank = 0; rank < strategy.ranks(); ++rank) nets.push_back(model.make(0.25));
  torch::manual_seed(9);
  std::vector<Batch> batches;
  for (int step = 0; step < 3; ++step) batches.push_back(model.batch(at::kFloat));
  Trained first;
  std::mutex mutex;  // guards first
  comm::run_as_threads(comm::inproc(strategy.ranks()), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    compile::Plan plan = compile::plan_from_text(
        concat(strategy.plan.empty() ? "" : matrix::plan_text(strategy.plan), '\n', how));
    plan.zero_stage = strategy.zero_stage;
    const auto& net = nets[static_cast<std::size_t>(world.rank())];
    Trainer trainer(net.module, net.loss, AdamW{.lr = 0.01},
                    {.clip_norm = 0.5,
                     .seed = 3,
                     .parallelism = Parallelism{
                         .mesh = mesh, .world = strategy.ranks() == 1 ? nullptr : &world, .plan = plan}});
    StepResult result;
    for (const Batch& batch : batches)
      result = trainer.step(map_tensors(batch, [&](const std::string&, const at::Tensor& tensor) {
        const auto [begin, end] = samples_of(mesh, world.rank(), tensor.size(0));
        return tensor.narrow(0, begin, end - begin).clone();
      }));
    const TrainingState state = train::record_of(trainer, result).state;
    const std::lock_guard lock(mutex);
    first.peak = std::max(first.peak, program::memory_of(*trainer.ran().front(), 1).peak.total());
    first.activations = std::max(first.activations, activations_of(*trainer.ran().front()));
    for (const auto& segment : trainer.ran().front()->segments)
      first.instructions += segment.instructions.size();
    if (world.rank() != 0) return;
    first.state = state;
    first.loss = result.loss;
    for (const auto& segment : trainer.ran().front()->segments)
      for (const auto& instruction : segment.instructions)
        if (const auto* compute = std::get_if<program::Compute>(&instruction))
          first.messages += compute->op.find("all_") != std::string::npos ||
                            compute->op.find("reduce_scatter") != std::string::npos;
  });
  return first;
}

static std::string difference(const Trained& a, const Trained& b) {
  if (a.loss != b.loss) return "loss";
  for (const auto& [name, tensor] : a.state.model)
    if (!at::equal(tensor, b.state.model.at(name))) return name;
  for (const auto& [name, tensor] : a.state.optimizer)
    if (!at::equal(tensor, b.state.optimizer.at(name))) return name;
  return "";
}

static std::vector<matrix::Strategy> strategies_of(const cases::ModelCase& model) {
  auto strategies = matrix::strategies(model, 2);
  strategies.push_back({.name = "1 rank"});
  strategies.push_back({.name = "2 stages", .pipeline = 2});
  return strategies;
}

TEST_CASE("recompute changes no bit of float32: dropout, batch norm, ranks, ZeRO, tensor parallel, stages") {
  const std::set<std::string> with_blocks = {"bert", "gpt2", "llama", "resnet", "t5", "vit"};
  int fitted = 0;
  for (const auto& model : cases::kModels) {
    if (!with_blocks.contains(model.name)) continue;
    if (kIsSanitized && std::string(model.name) != "gpt2") continue;
    for (const auto& strategy : strategies_of(model)) {
      const Trained plain = trained(model, strategy, "");
      const std::int64_t bytes = plain.activations * 19 / 20;
      for (const std::string& how : {std::string("recompute full"), std::string("recompute selective"),
                                     concat("recompute auto bytes=", bytes)}) {
        CAPTURE(std::string(model.name));
        CAPTURE(strategy.name);
        CAPTURE(how);
        Trained again;
        try {
          again = trained(model, strategy, how);
        } catch (const Error& error) {  // so small a model may be all messages
          REQUIRE(std::string(error.what()).find("the least that they take") != std::string::npos);
          continue;
        }
        const bool is_fitted = how.starts_with("recompute auto");
        fitted += is_fitted;
        CHECK(difference(again, plain) == "");
        CHECK(again.instructions > plain.instructions);
        CHECK(again.messages == plain.messages);
        if (is_fitted) CHECK(again.activations <= bytes);
      }
    }
  }
  CHECK(fitted > (kIsSanitized ? 3 : 20));
}

TEST_CASE("offload changes no bit of float32, alone and with recompute, and takes memory away") {
  const std::string all = "offload parameters optimizer_state gradients activations least=1\n";
  for (const auto& model : cases::kModels) {
    const bool has_blocks = std::string(model.name) == "gpt2";
    if (kIsSanitized && !has_blocks) continue;
    for (const auto& strategy : strategies_of(model)) {
      CAPTURE(std::string(model.name));
      CAPTURE(strategy.name);
      const Trained plain = trained(model, strategy, "");
      const Trained offloaded = trained(model, strategy, all);
      CHECK(difference(offloaded, plain) == "");
      CHECK(offloaded.peak < plain.peak);
      CHECK(offloaded.messages == plain.messages);
      if (has_blocks) CHECK(difference(trained(model, strategy, all + "recompute selective"), plain) == "");
    }
  }
}

}  // namespace saved_memory_test
