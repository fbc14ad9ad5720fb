// SPDX-License-Identifier: Apache-2.0
// What a step costs beside its arithmetic: bytes between ranks, counted where they cross, and memory that
// stays.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "models/models.h"
#include "shoal/comm/ranks.h"
#include "shoal/comm/shm/segment.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/comm/traffic.h"
#include "shoal/rendezvous/memory_store.h"
#include "shoal/rewrite/packing.h"
#include "shoal/rewrite/partition.h"
#include "shoal/rewrite/report.h"
#include "shoal/train/trainer.h"
#include "tests/parallel/counted.h"

namespace costs_test {

using namespace shoal;

static std::mutex checking;  // one rank at a time
static constexpr std::int64_t kLayers = 4, kWidth = 64, kBatch = 8, kLength = 16;

static models::Gpt2 gpt2() {
  torch::manual_seed(5);
  return models::Gpt2(models::Gpt2Config{.vocab_size = 512,
                                         .n_positions = 16,
                                         .n_embd = kWidth,
                                         .n_layer = kLayers,
                                         .n_head = 8,
                                         .embd_pdrop = 0,
                                         .attn_pdrop = 0,
                                         .resid_pdrop = 0});
}

static double parameter_bytes() {
  double bytes = 0;
  for (const auto& parameter : gpt2()->parameters()) bytes += static_cast<double>(parameter.nbytes());
  return bytes;
}

static std::string plan_text(const std::string& name) {
  std::ifstream file("recipes/plans/" + name + ".plan");
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs `body` with a trainer on each rank of the mesh, over shared memory.
static void on_mesh(const sharding::Mesh& mesh, int zero_stage, const std::string& text,
                    const std::function<void(Trainer&, comm::Communicator&, const Batch&)>& body) {
  compile::Plan plan = compile::plan_from_text(text);
  plan.zero_stage = zero_stage;
  rendezvous::MemoryStore store;
  const auto mappings = std::make_shared<comm::shm::Mappings>();
  std::vector<std::unique_ptr<comm::Communicator>> ranks(static_cast<std::size_t>(mesh.size()));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < mesh.size(); ++rank)
      threads.emplace_back([&, rank] {
        ranks[static_cast<std::size_t>(rank)] =
            comm::shm_communicator(store, rank, mesh.size(), {.job = "costs", .mappings = mappings});
      });
  }
  std::vector<models::Gpt2> nets;
  for (int rank = 0; rank < mesh.size(); ++rank) nets.push_back(gpt2());
  torch::manual_seed(9);
  const at::Tensor tokens = at::randint(512, {kBatch, kLength + 1}, at::kLong);
  comm::run_as_threads(std::move(ranks), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    auto net = nets[static_cast<std::size_t>(world.rank())];
    Trainer trainer(net,
                    [](models::Gpt2& model, const Batch& batch) {
                      const at::Tensor all = batch[0];
                      return at::cross_entropy_loss(model->forward(all.slice(1, 0, kLength)).flatten(0, 1),
                                                    all.slice(1, 1).flatten());
                    },
                    AdamW{}, {.parallelism = Parallelism{.mesh = mesh, .world = &world, .plan = plan}});
    const auto [begin, end] = samples_of(mesh, world.rank(), kBatch);
    body(trainer, world, Batch{tokens.slice(0, begin, end).clone()});
  });
}

// Bytes that have crossed between this rank and others, counted where they cross.
static std::int64_t crossed(comm::Communicator& world) {
  const comm::Traffic traffic = dynamic_cast<comm::Counted&>(world).traffic();
  std::int64_t bytes = 0;
  for (const auto* list : {&traffic.pulled, &traffic.pushed})
    for (const std::int64_t each : *list) bytes += each;
  return bytes;
}

// What a rank sends in a step, over all bytes of parameters and (N - 1) / N.
static double share_sent(const sharding::Mesh& mesh, int zero_stage, std::size_t microbatches = 1,
                         const std::string& plan = "") {
  double share = 0;
  on_mesh(mesh, zero_stage, plan, [&](Trainer& trainer, comm::Communicator& world, const Batch& batch) {
    const auto step = [&] {
      if (microbatches == 1) return trainer.step(batch);
      return trainer.step_over(std::vector<Batch>(microbatches, batch));
    };
    step();
    const std::int64_t before = crossed(world);
    step();
    const auto bytes = static_cast<double>(crossed(world) - before);
    const double ranks = world.size();
    if (world.rank() == 0) share = bytes / parameter_bytes() * ranks / (ranks - 1);
  });
  return share;
}

TEST_CASE("data parallelism moves twice the gradients, and ZeRO-3 three times the parameters") {
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    CHECK(share_sent(mesh_of(ranks, ranks, 1, 1), 0) == doctest::Approx(2).epsilon(0.005));
    // Reduce-scatter of gradients, all-gather of parameters.
    CHECK(share_sent(mesh_of(ranks, 1, ranks, 1), 1) == doctest::Approx(2).epsilon(0.005));
    CHECK(share_sent(mesh_of(ranks, 1, ranks, 1), 2) == doctest::Approx(2).epsilon(0.005));
    // Less than three: what backward does not read (biases, embeddings of positions) is gathered once.
    const double zero3 = share_sent(mesh_of(ranks, 1, ranks, 1), 3);
    CHECK(zero3 <= 3.005);
    CHECK(zero3 >= 2.9);
  }
}

TEST_CASE("three micro-batches move as much as one, unless each is reduced to save memory") {
  constexpr int kRanks = 2;
  const auto data = mesh_of(kRanks, kRanks, 1, 1), shard = mesh_of(kRanks, 1, kRanks, 1);
  CHECK(share_sent(data, 0, 3) == doctest::Approx(2).epsilon(0.005));
  CHECK(share_sent(shard, 1, 3) == doctest::Approx(2).epsilon(0.005));
  CHECK(share_sent(shard, 2, 3) == doctest::Approx(4).epsilon(0.005));
  CHECK(share_sent(shard, 2, 3, "accumulate reduce=once") == doctest::Approx(2).epsilon(0.005));
  CHECK(share_sent(data, 0, 3, "accumulate reduce=each") == doctest::Approx(6).epsilon(0.005));
}

static std::int64_t bytes_of(const ir::Graph& graph, const ir::ValueList& list) {
  std::int64_t bytes = 0;
  for (const auto& value : list) bytes += ir::bytes_of(graph.at(*value).type);
  return bytes;
}

// An all-reduce moves what a reduce-scatter and an all-gather move.
TEST_CASE("tensor parallelism reduces two activations a layer each way, or scatters and gathers them") {
  constexpr std::int64_t kActivation = kBatch * kLength * kWidth * 4;
  for (const std::string name : {"gpt2_tensor", "gpt2_sequence"}) {
    CAPTURE(name);
    std::map<ir::Phase, int> halves;  // of all-reduces
    bool scatters_forward = false;
    on_mesh(mesh_of(2, 1, 1, 2), -1, plan_text(name),
            [&](Trainer& trainer, comm::Communicator& world, const Batch& batch) {
              const auto& placed = trainer.placed(batch);
              if (world.rank() != 0) return;
              const ir::Graph local = rewrite::pack(rewrite::partition(placed, 0), placed.mesh, 0);
              for (const ir::Node& node : local.nodes) {
                if (node.op != "shoal::all_reduce" && node.op != "shoal::all_gather" &&
                    node.op != "shoal::reduce_scatter" && node.op != "shoal::all_to_all")
                  continue;
                ir::ValueList in;
                for (const ir::ValueId id : ir::inputs_of(node)) in.emplace_back(id);
                CHECK(node.op != "shoal::all_to_all");
                if (std::max(bytes_of(local, in), bytes_of(local, node.outputs)) != kActivation) continue;
                halves[node.phase] += node.op == "shoal::all_reduce" ? 2 : 1;
                scatters_forward |= node.op == "shoal::reduce_scatter" && node.phase == ir::Phase::Forward;
              }
            });
    // Two a layer, and one for the vocabulary: in the embedding, and in the gradient of the head.
    CHECK(halves[ir::Phase::Forward] == 2 * (2 * kLayers + 1));
    CHECK(halves[ir::Phase::Backward] == 2 * (2 * kLayers + 1));
    CHECK(scatters_forward == (name == "gpt2_sequence"));
  }
}

// Before a step ranks agree on what they are to do, and on the shapes of a batch that they share.
TEST_CASE("what crosses between two ranks is what their programs say, to the byte") {
  struct Strategy {
    sharding::Mesh mesh;
    int zero_stage;
    std::string plan;
  };
  std::vector<Strategy> strategies = {{mesh_of(2, 2, 1, 1), 0, ""}, {mesh_of(2, 1, 2, 1), 3, ""}};
  for (const char* plan : {"gpt2_tensor", "gpt2_sequence"})
    strategies.push_back({mesh_of(2, 1, 1, 2), -1, plan_text(plan)});
  strategies.push_back({mesh_of(2, 1, 1, 2), -1, ""});  // found
  for (const auto& [mesh, zero_stage, plan] : strategies) {
    CAPTURE(sharding::to_text(mesh));
    CAPTURE(plan);
    on_mesh(mesh, zero_stage, plan, [&](Trainer& trainer, comm::Communicator& world, const Batch& batch) {
      trainer.step(batch);
      const std::int64_t before = crossed(world);
      trainer.step(batch);
      const std::int64_t bytes = crossed(world) - before;
      matrix::Sent said;
      matrix::add_said(trainer.program(batch), trainer.placed(batch).mesh, world.rank(), said);
      const std::lock_guard lock(checking);
      CHECK(bytes == said.bytes + (zero_stage >= 0 ? 688 : 144));
      // Megatron's least: two activations a layer each way, and each all-reduce moves 2 S (N - 1) / N.
      if (!plan.empty()) CHECK(bytes >= 4 * kLayers * kBatch * kLength * kWidth * 4);
    });
  }
}

TEST_CASE("what is found sends no more than the plans that people wrote") {
  const auto sent = [](const std::string& plan) {
    std::int64_t bytes = 0;
    on_mesh(mesh_of(2, 1, 1, 2), -1, plan,
            [&](Trainer& trainer, comm::Communicator& world, const Batch& batch) {
              const auto& placed = trainer.placed(batch);
              if (world.rank() != 0) return;
              const ir::Graph local = rewrite::pack(rewrite::partition(placed, 0), placed.mesh, 0);
              for (const rewrite::Traffic& each : rewrite::report_of(placed, local, 0).traffic)
                bytes += each.bytes;
            });
    return bytes;
  };
  const std::int64_t found = sent("");
  CHECK(found > 0);
  CHECK(found <= sent(plan_text("gpt2_tensor")));
  CHECK(found <= sent(plan_text("gpt2_sequence")));
}

TEST_CASE("what stays in memory is what ZeRO's formulas say") {
  const double whole = parameter_bytes();
  for (const int ranks : {1, 2, 4, 8})
    for (const int stage : {0, 1, 2, 3}) {
      if (ranks == 1 && stage > 0) continue;
      CAPTURE(ranks);
      CAPTURE(stage);
      double most = 0;
      std::mutex mutex;  // guards most
      on_mesh(mesh_of(ranks, stage == 0 ? ranks : 1, stage == 0 ? 1 : ranks, 1), stage, "",
              [&](Trainer& trainer, comm::Communicator&, const Batch& batch) {
                const program::Program& program = trainer.program(batch);
                double bytes = 0;
                for (const auto& source : program.sources)
                  if (source.role == ir::Role::Parameter || source.role == ir::Role::OptimizerState)
                    bytes += static_cast<double>(ir::bytes_of(program.types[source.slot.index]));
                for (const auto& result : program.results)
                  if (result.role == ir::Role::Gradient)
                    bytes += static_cast<double>(ir::bytes_of(program.types[result.slot.index]));
                const std::lock_guard lock(mutex);
                most = std::max(most, bytes);
              });
      const double n = ranks;
      const double wanted = stage == 0 ? 4 : stage == 1 ? 2 + 2 / n : stage == 2 ? 1 + 3 / n : 4 / n;
      CHECK(most / whole == doctest::Approx(wanted).epsilon(0.03));
    }
}

}  // namespace costs_test
