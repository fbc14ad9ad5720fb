// SPDX-License-Identifier: Apache-2.0
// Fits y = tanh(3 x) with a small model, through nothing but the installed package. Fails if it does not
// learn.
#include <shoal/shoal.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  const auto loss = [](auto& net, const shoal::Batch& batch) {
    return torch::mse_loss(net->forward(batch[0].tensor()), batch[1].tensor());
  };
  shoal::Trainer trainer(model, loss, shoal::AdamW{.lr = 1e-2});

  const auto x = torch::linspace(-1, 1, 64).unsqueeze(1);
  const shoal::Batch batch{x, torch::tanh(3 * x)};
  const double before = trainer.evaluate(batch);
  for (int step = 0; step < 100; ++step) trainer.step(batch);
  const double after = trainer.evaluate(batch);
  std::cout << "loss " << before << " -> " << after << '\n';
  return after < before / 10 ? 0 : 1;
}
