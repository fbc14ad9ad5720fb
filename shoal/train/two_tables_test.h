// SPDX-License-Identifier: Apache-2.0
// A model of two tables, for tests.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/aten/memory.h"
#include "shoal/base/error_test.h"
#include "shoal/train/batch.h"
#include "shoal/train/trainer.h"

namespace shoal::two_tables {

using at::Tensor;
using Rows = std::map<std::string, Tensor>;

inline constexpr std::int64_t kIds = 40, kWidth = 3;

// Two tables; one is looked up twice, and has an id without a row.
struct Clicks : torch::nn::Module {
  torch::nn::Embedding items = register_module(
      "items", torch::nn::Embedding(torch::nn::EmbeddingOptions(kIds, kWidth).padding_idx(2)));
  torch::nn::Embedding users = register_module("users", torch::nn::Embedding(kIds, kWidth));
  torch::nn::Linear top = register_module("top", torch::nn::Linear(2 * kWidth, 1));
  std::function<Tensor(const Tensor&)> extra;

  Tensor forward(const Tensor& seen_BT, const Tensor& wanted_B, const Tensor& user_B) {
    const Tensor history = items(seen_BT).mean(1);
    const Tensor both = torch::cat({history * items(wanted_B), users(user_B)}, 1);
    Tensor out = top(both).squeeze(1);
    if (extra) out = out + extra(items->weight);
    return out;
  }
};

inline Tensor loss_of(std::shared_ptr<Clicks>& model, const Batch& batch) {
  const Tensor out = model->forward(batch["seen"].tensor(), batch["wanted"].tensor(), batch["user"].tensor());
  return at::binary_cross_entropy_with_logits(out, batch["clicked"].tensor());
}

inline std::shared_ptr<Clicks> model_of(std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  auto model = std::make_shared<Clicks>();
  model->to(at::kDouble);
  return model;
}

inline Batch batch_of(std::int64_t step, std::int64_t begin, std::int64_t end) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 + step));
  const auto draw = [&](std::int64_t most, std::vector<std::int64_t> sizes) {
    return at::randint(most, sizes, generator, at::kLong);
  };
  const Tensor seen = draw(kIds / 2, {14, 4}), wanted = draw(kIds, {14}), user = draw(kIds, {14}),
               clicked = draw(2, {14}).to(at::kDouble);
  const auto part = [&](const Tensor& tensor) { return tensor.narrow(0, begin, end - begin).clone(); };
  return Batch{
      {"seen", part(seen)}, {"wanted", part(wanted)}, {"user", part(user)}, {"clicked", part(clicked)}};
}

inline const TableOptions kBoth = {.placements = {{.parameters = "items.weight"}, {.parameters = "users.*"}}};
// What a matrix is multiplied with, too.
inline const TableOptions kAll = {
    .placements = {{.parameters = "items.weight"}, {.parameters = "users.*"}, {.parameters = "top.*"}}};

inline Rows rows_of(Trainer& trainer, Clicks& model) {
  const at::NoGradGuard no_grad;
  Rows rows;
  for (const auto& named : model.named_parameters())
    rows[named.key()] =
        aten::has_memory(named.value()) ? named.value().detach().clone() : trainer.rows(named.key());
  return rows;
}

}  // namespace shoal::two_tables
