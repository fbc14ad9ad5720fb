// SPDX-License-Identifier: Apache-2.0
// What backward makes again is what forward made, to the bit, and memory falls by what is said.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/program/memory.h"
#include "shoal/train/trainer.h"
#include "tests/parallel/cover.h"
#include "tests/parallel/matrix.h"

using namespace shoal;

namespace {

struct Trained {
  TrainingState state;
  double loss = 0;
  std::int64_t messages = 0;
  std::size_t instructions = 0;  // of all ranks
  std::int64_t activations = 0;  // at once, of the rank that has most
};

}  // namespace

static std::int64_t activations_of(const program::Program& program) {
  std::int64_t most = 0;
  for (const auto& segment : program::memory_of(program, 1).activations)
    for (const auto& use : segment) most = std::max(most, use.peak);
  return most;
}

// Three steps in float32, of rank 0. `how` is the words of a plan's line.
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
    compile::Plan plan;
    if (!strategy.plan.empty()) plan = compile::plan_from_text(matrix::plan_text(strategy.plan));
    plan.zero_stage = strategy.zero_stage;
    plan.recompute = compile::recompute_from_text(how);
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

TEST_CASE("recompute changes no bit of float32: dropout, batch norm, ranks, ZeRO, tensor parallel, stages") {
  const std::set<std::string> with_blocks = {"bert", "gpt2", "llama", "resnet", "t5", "vit"};
  int fitted = 0;
  for (const auto& model : cases::kModels) {
    if (!with_blocks.contains(model.name)) continue;
    if (matrix::is_sanitized() && std::string(model.name) != "gpt2") continue;
    auto strategies = matrix::strategies(model, 2);
    strategies.push_back({.name = "1 rank"});
    strategies.push_back({.name = "2 stages", .pipeline = 2});
    for (const auto& strategy : strategies) {
      const Trained plain = trained(model, strategy, "none");
      const std::int64_t bytes = plain.activations * 19 / 20;
      for (const std::string& how :
           {std::string("full"), std::string("selective"), concat("auto bytes=", bytes)}) {
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
        fitted += how.starts_with("auto");
        CHECK(difference(again, plain) == "");
        CHECK(again.instructions > plain.instructions);
        CHECK(again.messages == plain.messages);
        if (how.starts_with("auto")) CHECK(again.activations <= bytes);
      }
    }
  }
  CHECK(fitted > (matrix::is_sanitized() ? 3 : 20));
}
