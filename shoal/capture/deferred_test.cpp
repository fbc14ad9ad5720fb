// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/deferred.h"

#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "models/models.h"
#include "shoal/aten/memory.h"
#include "shoal/base/error_test.h"

namespace deferred_test {

using namespace shoal;
using at::Tensor;

namespace {

using Make = std::function<std::vector<Tensor>()>;

std::vector<Tensor> eager(const Make& make) {
  torch::manual_seed(3);
  return make();
}

// Eager's bits, also where something was drawn in between, and the generator is where eager leaves it.
void check_bits(const Make& make) {
  const auto wanted = eager(make);
  const Tensor next = torch::rand({5});
  torch::manual_seed(3);
  const auto made = deferred_init(make);
  CHECK(torch::rand({5}).equal(next));
  REQUIRE(made.size() == wanted.size());
  for (std::size_t i = made.size(); i-- > 0;) {  // in any order
    CAPTURE(i);
    CHECK(made[i].sizes() == wanted[i].sizes());
    materialize(made[i]);
    CHECK(made[i].strides() == wanted[i].strides());
    CHECK(made[i].equal(wanted[i]));
  }
}

std::vector<Tensor> tensors_of(torch::nn::Module& module) {
  std::vector<Tensor> tensors = module.parameters();
  for (const Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

template <class Module, class... Arguments>
void check_module(Arguments... arguments) {
  check_bits([&] { return tensors_of(*Module(arguments...)); });
}

}  // namespace

TEST_CASE("modules have eager's bits") {
  check_module<torch::nn::Linear>(300, 100);
  check_module<torch::nn::LSTM>(torch::nn::LSTMOptions(40, 50).num_layers(2).bidirectional(true));
  check_module<torch::nn::Conv2d>(torch::nn::Conv2dOptions(16, 32, 3));
  check_module<torch::nn::Transformer>(torch::nn::TransformerOptions(32, 4, 2, 2).dim_feedforward(64));
  check_module<torch::nn::Embedding>(torch::nn::EmbeddingOptions(700, 10).padding_idx(3));
}

TEST_CASE("every model has eager's bits") {
  const std::vector<models::Config> all = {
      models::BertConfig{.vocab_size = 61,
                         .hidden_size = 48,
                         .num_hidden_layers = 2,
                         .num_attention_heads = 3,
                         .intermediate_size = 40},
      models::DlrmConfig{.table_rows = {700, 90}},
      models::Gpt2Config{.vocab_size = 61, .n_positions = 32, .n_embd = 48, .n_layer = 2, .n_head = 3},
      models::LlamaConfig{.vocab_size = 61,
                          .hidden_size = 48,
                          .intermediate_size = 40,
                          .num_hidden_layers = 2,
                          .num_attention_heads = 4,
                          .num_key_value_heads = 2,
                          .max_position_embeddings = 64},
      models::LstmConfig{.vocab_size = 61, .embedding_size = 24, .hidden_size = 48, .num_layers = 2},
      models::MlpConfig{},
      models::ResnetConfig{.layers = {1, 1, 1, 1}, .width = 16, .num_classes = 5},
      models::T5Config{.vocab_size = 61,
                       .d_model = 48,
                       .d_kv = 8,
                       .d_ff = 40,
                       .num_layers = 2,
                       .num_decoder_layers = 2,
                       .num_heads = 3},
      models::VitConfig{.image_size = 8,
                        .patch_size = 4,
                        .hidden_size = 48,
                        .num_hidden_layers = 2,
                        .num_attention_heads = 3,
                        .intermediate_size = 40,
                        .num_classes = 5}};
  for (const models::Config& config : all) {
    CAPTURE(config.index());
    check_bits([&] { return tensors_of(*models::make(config).ptr()); });
  }
}

TEST_CASE("initialisers have eager's bits") {
  const torch::NoGradGuard no_grad;
  for (const auto& fill : std::vector<std::function<void(Tensor)>>{
           [](Tensor w) { torch::nn::init::orthogonal_(w, 2); },
           [](Tensor w) { torch::nn::init::sparse_(w, 0.1); },
           [](Tensor w) { torch::nn::init::xavier_normal_(w); },
           [](Tensor w) { w.uniform_(-1, 1).erfinv_().mul_(0.02).clamp_(-1, 1); },  // trunc_normal_
           [](Tensor w) { w.bernoulli_(0.3).add_(torch::rand_like(w)); },
           [](Tensor w) { w.copy_(torch::randn({60, 50}).t().mul(2)); },
           [](Tensor w) { w.copy_(torch::randperm(3000).view({50, 60})); },
           [](Tensor w) {
             w.normal_();
             w[7].zero_();
             w.select(1, 2).normal_();
           },
           [](Tensor w) { w.copy_(torch::multinomial(torch::rand({3000}), 3000).view({50, 60})); }})
    check_bits([&] {
      Tensor w = torch::empty({50, 60});
      fill(w);
      return std::vector{w, torch::randn({2000})};
    });
}

TEST_CASE("ties, views, copies and types") {
  check_bits([] {
    const Tensor a = torch::randn({40, 60});
    const Tensor copy = a.clone(), half = a.to(at::kHalf), view = a.narrow(0, 3, 30).t();
    a.mul_(2);
    const Tensor pair = torch::stack({a, copy}), rows = a.index({torch::tensor({3, 1})}).repeat({40, 1});
    return std::vector{a, copy, half, view, pair, rows};
  });
  const Tensor a = deferred_init([] { return torch::randn({40, 60}); });
  const Tensor view = a.t();
  CHECK(is_deferred(view));
  materialize(view);
  CHECK(view.is_alias_of(a));
  CHECK(!is_deferred(a));
}

TEST_CASE("what reads values has them made") {
  check_bits([] {
    const Tensor a = torch::randn({3000});
    const Tensor large = a.masked_select(a > 0);  // of a shape that values decide
    return std::vector{a.mul(a.abs().max().item<float>()), large, torch::full({2000}, large.numel())};
  });
}

TEST_CASE("a tensor from outside counts as it was, and may be written") {
  const Tensor outside = torch::arange(2000.0);
  const auto made = deferred_init([&] {
    const Tensor a = torch::zeros({2000}).add_(outside);
    outside.mul_(torch::full({2000}, 2));
    return std::vector{a, outside + 0};
  });
  CHECK(outside.equal(2 * torch::arange(2000.0)));
  outside.zero_();
  for (const Tensor& tensor : made) materialize(tensor);
  CHECK(made[0].equal(torch::arange(2000.0)));
  CHECK(made[1].equal(2 * torch::arange(2000.0)));
}

TEST_CASE("generators of one's own") {
  check_bits([] {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(9);
    return std::vector{torch::empty({3000}).normal_(0, 1, generator),
                       torch::empty({3000}).uniform_(0, 1, generator)};
  });
}

TEST_CASE("a tensor without values says so, and what makes it") {
  const Tensor a = deferred_init([] { return torch::randn({3000}); });
  std::string text;
  try {
    (void)a.add(1);
  } catch (const c10::Error& error) {
    text = error.what();
  }
  CHECK(text.find("made under deferred_init") != std::string::npos);
  CHECK(text.find("materialize()") != std::string::npos);
  const Tensor of_shape = [] {
    const capture::Deferral deferral(capture::Deferral::For::Shapes);
    return torch::randn({3000});
  }();
  CHECK(error_of([&] { materialize(of_shape, "w"); }).find("w is of a model of shapes alone") !=
        std::string::npos);
}

TEST_CASE("a matrix of more rows than any memory is made of a name, and says how its rows begin") {
  const auto table = [](auto... change) {
    return deferred_init([&] {
      torch::nn::Embedding made(torch::nn::EmbeddingOptions(std::int64_t{1} << 62, 16).padding_idx(3));
      (change(made->weight), ...);
      return made;
    });
  };
  auto plain = table();
  const auto endless = endless_of(plain->weight);
  REQUIRE(endless);
  CHECK(endless->rows == std::int64_t{1} << 62);
  CHECK(endless->begin == Endless::Begin::Normal);
  CHECK(endless->second == 1);
  CHECK(plain->weight.size(1) == 16);
  const auto drawn = endless_of(table([](Tensor& w) { torch::nn::init::uniform_(w, -0.5, 0.25); })->weight);
  CHECK(drawn->begin == Endless::Begin::Uniform);
  CHECK(drawn->first == -0.5);
  CHECK(drawn->second == 0.25);
  CHECK(endless_of(table([](Tensor& w) { torch::nn::init::constant_(w, 2); })->weight)->first == 2);
  CHECK(endless_of(table([](Tensor& w) { w.detach().cauchy_(); })->weight)->begin == Endless::Begin::Unknown);
  auto wide = deferred_init([] {
    torch::nn::Embedding made(std::int64_t{1} << 62, 16);
    made->to(at::kDouble);
    return made;
  });
  CHECK(endless_of(wide->weight)->rows == std::int64_t{1} << 62);
  CHECK(endless_of(wide->weight)->begin == Endless::Begin::Normal);
  CHECK(error_of([&] { materialize(*plain); }) ==
        "weight has 4611686018427387904 rows, and no memory has room for them. Remedy: a table has its rows "
        "(TrainerOptions::tables)");
  CHECK(!endless_of(deferred_init([] { return torch::nn::Linear(300, 100); })->weight));
}

}  // namespace deferred_test
