// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/flops.h"

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <variant>

#include "shoal/cli/verbs.h"
#include "shoal/compile/plan.h"
#include "shoal/runtime/product_kernels.h"
#include "shoal/train/half_products.h"

namespace shoal::cli {

bool counts_flops(const Recipe& recipe) {
  const models::Config& config = recipe.model.config;
  return std::holds_alternative<models::MlpConfig>(config) ||
         std::holds_alternative<models::Gpt2Config>(config) ||
         std::holds_alternative<models::LlamaConfig>(config);
}

std::int64_t num_parameters(const Recipe& recipe, const torch::nn::Module& module) {
  const compile::Plan plan = {.tables = table_specs(recipe)};
  std::int64_t total = 0;
  for (const auto& parameter : module.named_parameters())
    if (!compile::is_table(plan, parameter.key())) total += parameter.value().numel();
  return total;
}

std::optional<double> flops_per_unit(const Recipe& recipe, const torch::nn::Module& module) {
  const auto parameters = static_cast<double>(num_parameters(recipe, module));
  const auto attention = [&](std::int64_t layers, std::int64_t width) {
    return 12.0 * static_cast<double>(layers * width * recipe.training.seq_len);
  };
  if (!counts_flops(recipe)) return std::nullopt;
  if (std::holds_alternative<models::MlpConfig>(recipe.model.config)) return 6 * parameters;
  if (const auto* gpt2 = std::get_if<models::Gpt2Config>(&recipe.model.config))
    return 6 * (parameters - static_cast<double>(gpt2->n_positions * gpt2->n_embd)) +
           attention(gpt2->n_layer, gpt2->n_embd);
  if (const auto* llama = std::get_if<models::LlamaConfig>(&recipe.model.config)) {
    const std::int64_t lookups = llama->tie_word_embeddings ? 0 : llama->vocab_size * llama->hidden_size;
    return 6 * (parameters - static_cast<double>(lookups)) +
           attention(llama->num_hidden_layers, llama->num_attention_heads * models::head_dim(*llama));
  }
  return std::nullopt;
}

static at::ScalarType type_of_products(const Recipe& recipe, at::Device device) {
  if (recipe.training.dtype == FloatType::Float64) return at::kDouble;
  const auto compute = parse_dtype(recipe.precision.compute).value_or(DType::Float32);
  if (compute == DType::Float32 || (device.is_cpu() && train::product_instructions(compute).empty()))
    return at::kFloat;
  return compute == DType::Float16 ? at::kHalf : at::kBFloat16;
}

double measured_peak_flops_per_second(const Recipe& recipe, at::Device device) {
  constexpr std::int64_t kSize = kMeasuredMatrix;
  constexpr int kRuns = 8;
  const auto options = at::TensorOptions(type_of_products(recipe, device)).device(device);
  const at::Tensor a = at::ones({kSize, kSize}, options);
  at::Tensor product = at::empty({kSize, kSize}, options);
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    runtime::multiply(a, a, product);
    if (!device.is_cpu()) static_cast<void>(product[0][0].item<double>());  // waits for it
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 2.0 * std::pow(kSize, 3) / took.count());
  }
  return best;
}

}  // namespace shoal::cli
