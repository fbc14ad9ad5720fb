// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/task.h"

#include <torch/nn/functional/loss.h>

#include <array>

namespace shoal::cli {

static constexpr std::array kMakers = {make_text_task, make_bytes_task, make_image_task};  // by DatasetName

Task make_task(const Recipe& recipe) {
  return kMakers.at(static_cast<std::size_t>(recipe.dataset.name))(recipe);
}

at::Tensor loss_of(torch::nn::AnyModule& model, const Batch& batch) {
  const at::Tensor logits = model.forward(batch["inputs"].tensor());
  return torch::nn::functional::cross_entropy(logits.flatten(0, -2), batch["targets"].tensor().flatten());
}

static Batch example(const models::Gpt2Config&, const Recipe& recipe) {
  const at::Tensor tokens = at::zeros({recipe.training.local_batch_size, recipe.training.seq_len}, at::kLong);
  return {{"inputs", tokens}, {"targets", tokens}};
}

static Batch example(const models::MlpConfig& config, const Recipe& recipe) {
  const std::int64_t batch = recipe.training.local_batch_size;
  return {{"inputs", at::zeros({batch, config.in_features})}, {"targets", at::zeros({batch}, at::kLong)}};
}

static Batch example(const models::ResnetConfig& config, const Recipe& recipe) {
  const std::int64_t batch = recipe.training.local_batch_size;
  const std::int64_t size = recipe.dataset.image_size;
  return {{"inputs", at::zeros({batch, config.in_channels, size, size})},
          {"targets", at::zeros({batch}, at::kLong)}};
}

Batch example_batch(const Recipe& recipe) {
  const Batch batch =
      std::visit([&](const auto& config) { return example(config, recipe); }, recipe.model.config);
  const auto type = recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat;
  return map_tensors(batch, [&](const std::string&, const at::Tensor& tensor) {
    return tensor.is_floating_point() ? tensor.to(type) : tensor;
  });
}

}  // namespace shoal::cli
