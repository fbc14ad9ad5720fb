// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/task.h"

#include <torch/nn/functional/loss.h>

#include <array>

namespace shoal::cli {

// By DatasetName.
static constexpr std::array kMakers = {make_text_task,        make_bytes_task,          make_image_task,
                                       make_masked_text_task, make_corrupted_text_task, make_digits_task,
                                       make_files_task};

Task make_task(const Recipe& recipe) {
  return kMakers.at(static_cast<std::size_t>(recipe.dataset.name))(recipe);
}

at::Tensor logits_of(torch::nn::AnyModule& model, const Batch& batch) {
  const auto& tensors = std::get<Batch::Map>(batch.value());
  const at::Tensor& inputs = tensors.at("inputs").tensor();
  for (const char* second : {"categories", "decoder_inputs"})
    if (const auto found = tensors.find(second); found != tensors.end())
      return model.forward(inputs, found->second.tensor());
  return model.forward(inputs);
}

at::Tensor loss_of(torch::nn::AnyModule& model, const Batch& batch) {
  namespace functional = torch::nn::functional;
  const at::Tensor logits = logits_of(model, batch);
  const at::Tensor targets = batch["targets"].tensor();
  if (targets.is_floating_point()) return functional::binary_cross_entropy_with_logits(logits, targets);
  return functional::cross_entropy(logits.flatten(0, -2), targets.flatten());
}

// Tokens whose targets are tokens.
template <class Config>
static Batch example(const Config&, const Recipe& recipe) {
  const at::Tensor tokens = at::zeros({recipe.training.local_batch_size, recipe.training.seq_len}, at::kLong);
  return {{"inputs", tokens}, {"targets", tokens}};
}

static Batch example(const models::DlrmConfig& config, const Recipe& recipe) {
  const std::int64_t batch = recipe.training.local_batch_size;
  const auto num_tables = static_cast<std::int64_t>(config.table_rows.size());
  return {{"inputs", at::zeros({batch, config.dense_features})},
          {"categories", at::zeros({batch, num_tables}, at::kLong)},
          {"targets", at::zeros({batch})}};
}

static Batch example(const models::MlpConfig& config, const Recipe& recipe) {
  const std::int64_t batch = recipe.training.local_batch_size;
  return {{"inputs", at::zeros({batch, config.in_features})}, {"targets", at::zeros({batch}, at::kLong)}};
}

static Batch images(std::int64_t channels, std::int64_t size, const Recipe& recipe) {
  const std::int64_t batch = recipe.training.local_batch_size;
  return {{"inputs", at::zeros({batch, channels, size, size})}, {"targets", at::zeros({batch}, at::kLong)}};
}

static Batch example(const models::ResnetConfig& config, const Recipe& recipe) {
  return images(config.in_channels, recipe.dataset.image_size, recipe);
}

static Batch example(const models::VitConfig& config, const Recipe& recipe) {
  return images(config.num_channels, config.image_size, recipe);
}

static Batch example(const models::T5Config&, const Recipe& recipe) {
  const std::int64_t batch = recipe.training.local_batch_size;
  const CorruptedSizes sizes = corrupted_sizes(recipe.training.seq_len);
  const at::Tensor targets = at::zeros({batch, sizes.targets}, at::kLong);
  return {{"inputs", at::zeros({batch, sizes.inputs}, at::kLong)},
          {"decoder_inputs", targets},
          {"targets", targets}};
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
