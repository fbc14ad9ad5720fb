// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/task.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/cli/device.h"

namespace shoal::cli {

// By DatasetName.
static constexpr std::array kMakers = {
    make_text_task,   make_bytes_task, make_image_task,  make_masked_text_task, make_corrupted_text_task,
    make_digits_task, make_files_task, make_clicks_task, make_criteo_task,      make_words_task};

Task make_task(const Recipe& recipe) {
  const at::Device device = device_of(recipe);
  return on_device(kMakers.at(static_cast<std::size_t>(recipe.dataset.name))(recipe), device);
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
static Batch example(const Config&, const Recipe& recipe, std::int64_t batch) {
  const at::Tensor tokens = at::zeros({batch, recipe.training.seq_len}, at::kLong);
  return {{"inputs", tokens}, {"targets", tokens}};
}

static Batch example(const models::DlrmConfig& config, const Recipe&, std::int64_t batch) {
  const auto num_tables = static_cast<std::int64_t>(config.table_rows.size());
  return {{"inputs", at::zeros({batch, config.dense_features})},
          {"categories", at::zeros({batch, num_tables}, at::kLong)},
          {"targets", at::zeros({batch})}};
}

// Numbers and ids of a sample.
static Batch clicks(std::int64_t batch, std::int64_t numbers, std::int64_t fields) {
  return {{"inputs", at::zeros({batch, numbers})},
          {"categories", at::zeros({batch, fields}, at::kLong)},
          {"targets", at::zeros({batch})}};
}
static Batch example(const models::DcnConfig& config, const Recipe&, std::int64_t batch) {
  return clicks(batch, config.numbers, config.fields);
}
static Batch example(const models::DeepFmConfig& config, const Recipe&, std::int64_t batch) {
  return clicks(batch, config.numbers, config.fields);
}
static Batch example(const models::WideDeepConfig& config, const Recipe&, std::int64_t batch) {
  return clicks(batch, config.numbers, config.fields);
}
static Batch example(const models::Word2VecConfig& config, const Recipe&, std::int64_t batch) {
  const std::int64_t beside = 1 + config.negatives;
  return {{"inputs", at::zeros({batch}, at::kLong)},
          {"categories", at::zeros({batch, beside}, at::kLong)},
          {"targets", at::zeros({batch, beside})}};
}

static Batch example(const models::MlpConfig& config, const Recipe&, std::int64_t batch) {
  return {{"inputs", at::zeros({batch, config.in_features})}, {"targets", at::zeros({batch}, at::kLong)}};
}

static Batch images(std::int64_t channels, std::int64_t size, std::int64_t batch) {
  return {{"inputs", at::zeros({batch, channels, size, size})}, {"targets", at::zeros({batch}, at::kLong)}};
}

static Batch example(const models::ResnetConfig& config, const Recipe& recipe, std::int64_t batch) {
  return images(config.in_channels, recipe.dataset.image_size, batch);
}

static Batch example(const models::VitConfig& config, const Recipe&, std::int64_t batch) {
  return images(config.num_channels, config.image_size, batch);
}

static Batch example(const models::T5Config&, const Recipe& recipe, std::int64_t batch) {
  const CorruptedSizes sizes = corrupted_sizes(recipe.training.seq_len);
  const at::Tensor targets = at::zeros({batch, sizes.targets}, at::kLong);
  return {{"inputs", at::zeros({batch, sizes.inputs}, at::kLong)},
          {"decoder_inputs", targets},
          {"targets", targets}};
}

Batch example_batch(const Recipe& recipe, std::int64_t samples) {
  const Batch batch =
      std::visit([&](const auto& config) { return example(config, recipe, samples); }, recipe.model.config);
  const auto type = recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat;
  return map_tensors(batch, [&](const std::string&, const at::Tensor& tensor) {
    return tensor.is_floating_point() ? tensor.to(type) : tensor;
  });
}

// How many values an integer of the batch can have.
static std::int64_t kinds_of(const models::Config& config, const std::string& item) {
  if (const auto* dlrm = std::get_if<models::DlrmConfig>(&config))
    return *std::ranges::min_element(dlrm->table_rows);
  return std::visit(
      [&](const auto& of_model) -> std::int64_t {
        if constexpr (requires { of_model.vocab_size; }) return of_model.vocab_size;
        if constexpr (requires { of_model.ids; }) return of_model.ids;
        if constexpr (requires { of_model.words; }) return of_model.words;
        if constexpr (requires { of_model.num_classes; }) return of_model.num_classes;
        if constexpr (requires { of_model.out_features; }) return of_model.out_features;
        fail(ErrorKind::Internal, "random batch: ", item, " has no kinds");
      },
      config);
}

Batch random_batch(const Recipe& recipe, std::int64_t samples, std::uint64_t seed) {
  constexpr double kIgnoredShare = 0.125;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return map_tensors(example_batch(recipe, samples), [&](const std::string& item, const at::Tensor& zeros) {
    if (zeros.is_floating_point()) {
      const at::Tensor numbers = at::randn(zeros.sizes(), generator, zeros.options());
      return item == "targets" ? numbers.gt(0).to(zeros.scalar_type()) : numbers;
    }
    const at::Tensor drawn =
        at::randint(kinds_of(recipe.model.config, item), zeros.sizes(), generator, at::kLong);
    if (item != "targets") return drawn;
    return drawn.masked_fill(at::rand(zeros.sizes(), generator, at::kFloat) < kIgnoredShare, kIgnored);
  });
}

at::Tensor zeros_apart(at::IntArrayRef shape, at::ScalarType dtype) {
  const auto size = static_cast<std::size_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
  auto bytes = std::make_unique<std::vector<std::byte>>(size);
  auto* const data = bytes->data();
  return at::from_blob(data, shape, [owner = bytes.release()](void*) { delete owner; }, dtype);
}
at::Tensor apart(const at::Tensor& tensor) {
  return zeros_apart(tensor.sizes(), tensor.scalar_type()).copy_(tensor);
}

Batch part_of(const Batch& batch, sharding::Range part) {
  return map_tensors(batch, [&](const std::string&, const at::Tensor& tensor) {
    if (part.begin == 0 && part.end == tensor.size(0)) return tensor;
    // A copy: what would be a view keeps the whole batch.
    return tensor.narrow(0, part.begin, part.end - part.begin).clone(at::MemoryFormat::Contiguous);
  });
}

}  // namespace shoal::cli
