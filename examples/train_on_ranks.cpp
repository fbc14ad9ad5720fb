// SPDX-License-Identifier: Apache-2.0
// One model trained by all ranks of a job, with ZeRO-3: each keeps a part of parameters, gradients and optimizer state.
// The losses are those of one device, whatever the number of ranks. Killed and started again, on as many ranks or on
// others, it goes on from its newest checkpoint.
//
//   shoal run -n 2 example_train_on_ranks [FOLDER] [STEPS]
//
//   2 ranks over shared memory; a rank keeps 0.50 of the parameters
//   step 20 loss 0.11131, held out 0.10512
//   …
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "shoal/shoal.h"

using namespace shoal;

// Of all ranks together; each rank makes it, and is given its part.
static Batch batch_of(std::int64_t step) {
  const at::Tensor x = (at::arange(30 * 8) * (1.1 + static_cast<double>(step))).sin().view({30, 8});
  return Batch{{"x", x}, {"y", x.sum(1, /*keepdim=*/true).tanh()}};
}

int main(int argc, char** argv) try {
  const std::filesystem::path folder = argc > 1 ? argv[1] : "";
  const std::int64_t steps = argc > 2 ? std::atoll(argv[2]) : 60;

  World world;  // before anything else: waits for all ranks
  const Parallelism parallelism = world.parallelism({.shard = -1});

  at::manual_seed(1);  // rank 0's model is taken on all
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(32, 1));
  std::int64_t all = 0, kept = 0;
  for (const at::Tensor& parameter : model->parameters()) all += parameter.numel();
  Trainer trainer(model,
                  [](torch::nn::Sequential& net, const Batch& batch) {
                    return torch::nn::functional::mse_loss(net->forward(batch["x"].tensor()), batch["y"]);
                  },
                  AdamW{.lr = 0.01}, {.parallelism = parallelism});
  if (!folder.empty() && trainer.load(folder) && world.is_first())
    std::printf("goes on from step %lld\n", static_cast<long long>(trainer.progress().steps));
  if (world.is_first() && world.size() > 1)
    std::printf("%d ranks over %s\n", world.size(), world.medium().c_str());

  while (trainer.progress().steps < steps) {
    const StepResult result = trainer.step(part_of(batch_of(trainer.progress().steps), parallelism));
    if (result.step % 20 != 0) continue;
    const double held_out =
        trainer.evaluate(part_of(batch_of(-1), parallelism));  // on all ranks, as steps are
    if (!folder.empty()) trainer.save(folder);                 // likewise; the first one writes
    if (!world.is_first()) continue;
    std::printf("step %lld loss %.9g, held out %.9g\n", static_cast<long long>(result.step), result.loss,
                held_out);
    std::fflush(stdout);
  }
  trainer.wait_for_saves();
  trainer.materialize();  // the whole model again, on every rank: for what does not train
  for (const at::Tensor& parameter : model->parameters()) kept += parameter.numel();
  if (world.is_first() && kept == all)
    std::printf("at step %lld: %lld parameters\n", static_cast<long long>(steps),
                static_cast<long long>(all));
} catch (const std::exception& error) {  // the launcher says which rank failed first, with these words
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
