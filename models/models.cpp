// SPDX-License-Identifier: Apache-2.0
#include "models/models.h"

#include <vector>

namespace models {

std::span<const Flavor> flavors() {
  static const std::vector<Flavor> table = {
      {"gpt2", "", Gpt2Config{}},
      {"gpt2", "124M", Gpt2Config{}},
      {"gpt2", "355M", Gpt2Config{.n_embd = 1024, .n_layer = 24, .n_head = 16}},
      {"gpt2", "774M", Gpt2Config{.n_embd = 1280, .n_layer = 36, .n_head = 20}},
      {"mlp", "", MlpConfig{}},
      {"resnet", "", ResnetConfig{}},
      {"resnet", "18", ResnetConfig{}},
      {"resnet", "34", ResnetConfig{.layers = {3, 4, 6, 3}}},
  };
  return table;
}

std::optional<Config> find(std::string_view model, std::string_view flavor) {
  for (const Flavor& row : flavors())
    if (row.model == model && row.flavor == flavor) return row.config;
  return std::nullopt;
}

static torch::nn::AnyModule make_one(const MlpConfig& config) { return torch::nn::AnyModule(Mlp(config)); }
static torch::nn::AnyModule make_one(const Gpt2Config& config) { return torch::nn::AnyModule(Gpt2(config)); }
static torch::nn::AnyModule make_one(const ResnetConfig& config) {
  return torch::nn::AnyModule(Resnet(config));
}

torch::nn::AnyModule make(const Config& config) {
  return std::visit([](const auto& of_model) { return make_one(of_model); }, config);
}

}  // namespace models
