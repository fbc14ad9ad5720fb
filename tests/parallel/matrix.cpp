// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/matrix.h"

#include <ATen/Parallel.h>

#include <mutex>

#include "shoal/base/error.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"

namespace shoal::matrix {

static constexpr int kSteps = 3;
static constexpr double kDropout = 0.25;

static Trainer trainer_of(const cases::Net& net, std::optional<Parallelism> parallelism) {
  TrainerOptions options{.clip_norm = 0.5, .seed = 3, .parallelism = std::move(parallelism)};
  return Trainer(net.module, net.loss, AdamW{.lr = 0.01, .groups = no_decay_below_two_dims()}, options);
}

static std::vector<Batch> batches_of(const cases::ModelCase& model) {
  torch::manual_seed(9);
  std::vector<Batch> batches;
  for (int step = 0; step < kSteps; ++step) batches.push_back(model.batch(at::kDouble));
  return batches;
}

static Batch part_of(const Batch& batch, const sharding::Mesh& mesh, int rank) {
  return map_tensors(batch, [&](const std::string&, const at::Tensor& tensor) {
    const auto [begin, end] = samples_of(mesh, rank, tensor.size(0));
    return tensor.narrow(0, begin, end - begin).clone();
  });
}

Outcome run(const cases::ModelCase& model, const Strategy& strategy) {
  const auto make = [&] {
    cases::Net net = model.make(kDropout);
    net.module->to(at::kDouble);
    return net;
  };
  const auto batches = batches_of(model);
  std::vector<train::Record> wanted;
  Trainer alone = trainer_of(make(), {});
  for (const Batch& batch : batches) wanted.push_back(train::record_of(alone, alone.step(batch)));

  const int ranks = strategy.replicate * strategy.shard * strategy.tensor;
  const auto mesh = mesh_of(ranks, strategy.replicate, strategy.shard, strategy.tensor);
  std::vector<cases::Net> nets;
  for (int rank = 0; rank < ranks; ++rank) nets.push_back(make());
  Outcome outcome;
  std::mutex mutex;  // guards outcome
  try {
    comm::run_as_threads(comm::inproc(ranks), [&](comm::Communicator& world) {
      at::set_num_threads(1);
      Parallelism parallelism{.mesh = mesh,
                              .world = &world,
                              .zero_stage = strategy.zero_stage,
                              .plan = rewrite::plan_from_text(strategy.plan),
                              .bucket_bytes = 4096,
                              .limit = std::chrono::seconds(60)};
      Trainer trainer = trainer_of(nets[static_cast<std::size_t>(world.rank())], parallelism);
      for (std::size_t step = 0; step < batches.size(); ++step) {
        const auto result = trainer.step(part_of(batches[step], mesh, world.rank()));
        const auto comparison = train::compare(train::record_of(trainer, result), wanted[step], 1e-9);
        const std::lock_guard lock(mutex);
        if (comparison.largest > outcome.worst.largest) outcome.worst = comparison;
      }
    });
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

}  // namespace shoal::matrix
