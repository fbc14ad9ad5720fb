// SPDX-License-Identifier: Apache-2.0
#include "models/models.h"

#include <doctest/doctest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <set>
#include <string>

using namespace models;

static const Gpt2Config kSmallGpt = {
    .vocab_size = 61, .n_positions = 16, .n_embd = 24, .n_layer = 2, .n_head = 3};
static const ResnetConfig kSmallResnet = {.layers = {1, 1, 1, 1}, .width = 4, .num_classes = 5};

static std::int64_t num_parameters(const torch::nn::Module& module) {
  std::int64_t total = 0;
  for (const at::Tensor& parameter : module.parameters()) total += parameter.numel();
  return total;
}

static at::Tensor tokens(const Gpt2Config& config) {
  return torch::randint(config.vocab_size, {2, config.n_positions});
}

TEST_CASE("parameter counts are the published ones") {
  CHECK(num_parameters(*Gpt2(Gpt2Config{})) == 124'439'808);
  CHECK(num_parameters(*Resnet(ResnetConfig{})) == 11'689'512);
  CHECK(num_parameters(*Resnet(ResnetConfig{.layers = {3, 4, 6, 3}})) == 21'797'672);
  CHECK(num_parameters(*Mlp(MlpConfig{.in_features = 3, .hidden = {5}, .out_features = 2})) ==
        3 * 5 + 5 + 5 * 2 + 2);
}

TEST_CASE("gpt2's parameters have Hugging Face's names and shapes") {
  const auto parameters = Gpt2(kSmallGpt)->named_parameters();
  CHECK(parameters["transformer.wte.weight"].sizes() == at::IntArrayRef({61, 24}));
  CHECK(parameters["transformer.wpe.weight"].sizes() == at::IntArrayRef({16, 24}));
  CHECK(parameters["transformer.h.1.ln_1.weight"].sizes() == at::IntArrayRef({24}));
  CHECK(parameters["transformer.h.0.attn.c_attn.weight"].sizes() == at::IntArrayRef({24, 72}));
  CHECK(parameters["transformer.h.0.attn.c_proj.weight"].sizes() == at::IntArrayRef({24, 24}));
  CHECK(parameters["transformer.h.0.mlp.c_fc.weight"].sizes() == at::IntArrayRef({24, 96}));
  CHECK(parameters["transformer.h.0.mlp.c_proj.weight"].sizes() == at::IntArrayRef({96, 24}));
  CHECK(parameters["transformer.ln_f.bias"].sizes() == at::IntArrayRef({24}));
  CHECK(parameters.size() == 2 + 2 * 12 + 2);
}

TEST_CASE("resnet's parameters have torchvision's names") {
  const auto parameters = Resnet(kSmallResnet)->named_parameters();
  for (const std::string name :
       {"conv1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight",
        "layer2.0.downsample.1.bias", "layer4.0.bn2.weight", "fc.bias"})
    CHECK_MESSAGE(parameters.contains(name), name);
  CHECK(!parameters.contains("layer1.0.downsample.0.weight"));
}

TEST_CASE("gpt2's output projection is its embedding") {
  torch::manual_seed(1);
  Gpt2 model(kSmallGpt);
  for (const at::Tensor& parameter : model->parameters())
    CHECK(parameter.sizes() != at::IntArrayRef({kSmallGpt.n_embd, kSmallGpt.vocab_size}));
  const at::Tensor input = torch::zeros({1, 4}, torch::kLong);
  model->forward(input).sum().backward();
  const at::Tensor grad = model->named_parameters()["transformer.wte.weight"].grad();
  CHECK(grad[60].abs().sum().item<float>() >
        0);  // token 60 was never an input: only the output reads its row
}

TEST_CASE("an untrained gpt2 is nearly uniform over the vocabulary") {
  torch::manual_seed(1);
  Gpt2 model(kSmallGpt);
  const at::Tensor logits = model->forward(tokens(kSmallGpt));
  CHECK(logits.sizes() == at::IntArrayRef({2, 16, 61}));
  const at::Tensor labels = torch::randint(kSmallGpt.vocab_size, {32});
  const auto loss = torch::nn::functional::cross_entropy(logits.view({32, 61}), labels).item<double>();
  CHECK(loss == doctest::Approx(std::log(61)).epsilon(0.05));
}

TEST_CASE("gpt2 looks only backwards") {
  torch::manual_seed(1);
  Gpt2 model(kSmallGpt);
  model->eval();
  const torch::NoGradGuard no_grad;
  at::Tensor input = tokens(kSmallGpt);
  const at::Tensor before = model->forward(input);
  input.index_put_({torch::indexing::Slice(), 10}, (input.select(1, 10) + 1) % kSmallGpt.vocab_size);
  const at::Tensor difference = (model->forward(input) - before).abs().amax({0, 2});
  CHECK(difference.slice(0, 0, 10).max().item<float>() == 0);
  CHECK(difference.slice(0, 10).min().item<float>() > 0);
}

TEST_CASE("gpt2's dropout acts in training and not in evaluation") {
  torch::manual_seed(1);
  Gpt2 model(kSmallGpt);
  const at::Tensor input = tokens(kSmallGpt);
  CHECK(!torch::equal(model->forward(input), model->forward(input)));
  model->eval();
  CHECK(torch::equal(model->forward(input), model->forward(input)));
}

TEST_CASE("gpt2 says which limit a batch or a config breaks") {
  Gpt2 model(kSmallGpt);
  CHECK_THROWS_WITH_AS(model->forward(torch::zeros({1, 17}, torch::kLong)),
                       doctest::Contains("gpt2: 17 tokens in a row, but n_positions is 16"), c10::Error);
  CHECK_THROWS_WITH_AS(Gpt2(Gpt2Config{.n_embd = 10, .n_head = 4}),
                       doctest::Contains("n_embd is 10, not a multiple of n_head 4"), c10::Error);
}

TEST_CASE("resnet halves the image five times and updates its running statistics in training only") {
  torch::manual_seed(1);
  Resnet model(kSmallResnet);
  const at::Tensor images = torch::randn({2, 3, 64, 64});
  const at::Tensor mean = model->named_buffers()["bn1.running_mean"];
  CHECK(model->forward(images).sizes() == at::IntArrayRef({2, 5}));
  CHECK(mean.abs().sum().item<float>() > 0);
  const at::Tensor before = mean.clone();
  model->eval();
  model->forward(images);
  CHECK(torch::equal(before, mean));
}

TEST_CASE("every model of the table is made and learns one batch") {
  std::set<std::string_view> seen;
  for (const Flavor& row : flavors()) seen.insert(row.model);
  CHECK(seen == std::set<std::string_view>{"gpt2", "mlp", "resnet"});

  const std::vector<std::pair<Config, at::Tensor>> small = {
      {kSmallGpt, tokens(kSmallGpt)},
      {MlpConfig{.in_features = 6, .hidden = {16}, .out_features = 3, .dropout = 0.1}, torch::randn({8, 6})},
      {kSmallResnet, torch::randn({8, 3, 32, 32})}};
  for (const auto& [config, input] : small) {
    torch::manual_seed(1);
    torch::nn::AnyModule model = make(config);
    torch::optim::SGD optimizer(model.ptr()->parameters(), 0.05);
    const auto loss = [&] {
      const at::Tensor logits = model.forward(input).flatten(0, -2);
      const at::Tensor labels = torch::arange(logits.size(0)) % logits.size(1);
      return torch::nn::functional::cross_entropy(logits, labels);
    };
    const auto first = loss().item<double>();
    double last = first;
    for (int step = 0; step < 30; ++step) {
      optimizer.zero_grad();
      const at::Tensor value = loss();
      value.backward();
      optimizer.step();
      last = value.item<double>();
    }
    CHECK(last < 0.95 * first);
  }
}

TEST_CASE("a model or flavor that does not exist is not found") {
  CHECK(find("gpt2", "124M") == Config(Gpt2Config{}));
  CHECK(!find("gpt2", "125M"));
  CHECK(!find("gpt3", ""));
}
