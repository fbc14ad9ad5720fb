// SPDX-License-Identifier: Apache-2.0
// What a rank has in memory under each strategy, counted by its own allocator: a process each.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "models/models.h"
#include "shoal/base/error.h"
#include "shoal/base/held.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/rendezvous/host_store.h"
#include "shoal/runtime/allocator.h"
#include "shoal/train/trainer.h"
#include "tests/multi_process/processes.h"

namespace memory_test {

using namespace shoal;

static constexpr double kOwn = 0.06;      // what ranks tell each other in, of so small a model
static constexpr double kBesides = 0.15;  // activations, buckets, what is gathered

// Over all parameters' bytes: what stays from step to step, and the most in a step.
struct Measured {
  double kept = 0, most = 0;
};

// Little is activations: few tokens, wide layers.
static Measured measured(comm::Communicator& world, int zero_stage) {
  at::set_num_threads(1);
  runtime::install_allocator();
  const auto held_now = [] { return held(Holder::Tensors) + held(Holder::Communicators); };
  const std::int64_t before = held_now();
  models::Gpt2 model(
      models::Gpt2Config{.vocab_size = 256, .n_positions = 4, .n_embd = 256, .n_layer = 4, .n_head = 4});
  double bytes = 0;
  for (const at::Tensor& parameter : model->parameters()) bytes += static_cast<double>(parameter.nbytes());
  const auto loss = [](models::Gpt2& net, const Batch& batch) {
    return at::cross_entropy_loss(net->forward(batch[0].tensor()).flatten(0, 1), batch[1].tensor().flatten());
  };
  Parallelism parallelism{.mesh = mesh_of(world.size(), zero_stage == 0 ? world.size() : 1,
                                          zero_stage == 0 ? 1 : world.size(), 1),
                          .world = &world};
  parallelism.plan = compile::plan_from_text("buckets 256KiB");
  parallelism.plan.zero_stage = zero_stage;
  Trainer trainer(model, loss, AdamW{}, {.parallelism = parallelism});
  const Batch batch{at::randint(256, {1, 4}, at::kLong), at::randint(256, {1, 4}, at::kLong)};
  trainer.step(batch);
  trainer.step(batch);
  most_held();  // so far
  trainer.step(batch);
  const auto share = [&](std::int64_t now) { return static_cast<double>(now - before) / bytes; };
  return {.kept = share(held_now()), .most = share(most_held())};
}

TEST_CASE("what a rank has in memory is what ZeRO's formulas say, by its allocator") {
  for (const int ranks : {1, 2, 4})
    for (const int stage : {0, 1, 2, 3}) {
      if (ranks == 1 && stage > 0) continue;
      CAPTURE(ranks);
      CAPTURE(stage);
      rendezvous::HostStore store;
      const auto codes = tests::run_processes(ranks, [&](int rank) {
        const auto world = comm::shm_communicator(store, rank, ranks, {.job = "memory"});
        const auto [kept, most] = measured(*world, stage);
        const double n = ranks;
        // Parameters, Adam's two, and gradients, which stay until the next step's.
        const double wanted = stage == 0 ? 4 : stage == 1 ? 2 + 2 / n : stage == 2 ? 1 + 3 / n : 4 / n;
        SHOAL_CHECK(kept > 0.99 * wanted && kept < 1.01 * wanted + kOwn, Internal, "ZeRO-", stage, " on ",
                    ranks, " ranks keeps ", kept, " of the parameters' bytes, wanted ", wanted);
        // In a step of ZeRO-1 the reduced part of each gradient lies beside the whole; elsewhere there are a bucket
        // of gradients, a layer that is gathered, and activations.
        const double more = (stage == 1 ? 1 / n : 0) + kBesides;
        SHOAL_CHECK(most > wanted && most < wanted + more, Internal, "ZeRO-", stage, " on ", ranks,
                    " ranks takes ", most, " of the parameters' bytes, wanted less than ", wanted + more);
      });
      CHECK(codes == std::vector<int>(static_cast<std::size_t>(ranks)));
    }
}

}  // namespace memory_test
