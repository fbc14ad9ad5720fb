// SPDX-License-Identifier: Apache-2.0
// Trains, saves as it goes, and goes on from its newest checkpoint when it is started again, after whatever
// ended it: the model at its end is that of a run that nobody interrupted, bit for bit. The loss is drawn by
// TensorBoard.
//
//   example_resume [FOLDER] [STEPS]
//
//   step 40 loss 0.02131
//   …
//   at step 200: loss 0.001372, sum of all parameters 3.0517829
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "shoal/shoal.h"

using namespace shoal;

// Any source that can begin in the middle: here each step's batch is a function of its number.
static Batch batch_of(std::int64_t step) {
  const at::Tensor x = (at::arange(64 * 8) * (1.1 + static_cast<double>(step))).sin().view({64, 8});
  return Batch{{"x", x}, {"y", x.sum(1, /*keepdim=*/true).tanh()}};
}

int main(int argc, char** argv) {
  const std::filesystem::path given = argc > 1 ? argv[1] : "";
  const std::filesystem::path folder =
      given.empty() ? std::filesystem::temp_directory_path() / ("shoal_resume_" + std::to_string(::getpid()))
                    : given;
  const std::int64_t steps = argc > 2 ? std::atoll(argv[2]) : 200;

  at::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(32, 1));
  Trainer trainer(
      model,
      [](torch::nn::Sequential& net, const Batch& batch) {
        return torch::nn::functional::mse_loss(net->forward(batch["x"].tensor()), batch["y"]);
      },
      AdamW{.lr = 0.01});

  observe::EventFile board(folder / "tb");  // tensorboard --logdir FOLDER/tb
  if (trainer.load(folder))
    std::printf("goes on from step %lld\n", static_cast<long long>(trainer.progress().steps));
  double loss = 0;
  while (trainer.progress().steps < steps) {
    const StepResult result = trainer.step(batch_of(trainer.progress().steps));
    loss = result.loss;
    if (result.step % 20 != 0) continue;
    trainer.save(folder);  // written while training goes on
    board.write(result.step, {{"loss", loss}});
    std::printf("step %lld loss %.4g\n", static_cast<long long>(result.step), loss);
    std::fflush(stdout);
  }
  trainer.wait_for_saves();
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& parameter : model->parameters()) sum += parameter.detach().sum(at::kDouble);
  std::printf("at step %lld: loss %.9g, sum of all parameters %.17g\n", static_cast<long long>(steps), loss,
              sum.item<double>());
  if (given.empty()) std::filesystem::remove_all(folder);
}
