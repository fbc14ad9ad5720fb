// SPDX-License-Identifier: Apache-2.0
#include "models/models.h"

#include <doctest/doctest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <cmath>
#include <set>
#include <string>

using namespace models;

static const Gpt2Config kSmallGpt = {
    .vocab_size = 61, .n_positions = 16, .n_embd = 24, .n_layer = 2, .n_head = 3};
static const LlamaConfig kSmallLlama = {.vocab_size = 61,
                                        .hidden_size = 24,
                                        .intermediate_size = 40,
                                        .num_hidden_layers = 2,
                                        .num_attention_heads = 4,
                                        .num_key_value_heads = 2,
                                        .max_position_embeddings = 16};
static const BertConfig kSmallBert = {.vocab_size = 61,
                                      .hidden_size = 24,
                                      .num_hidden_layers = 2,
                                      .num_attention_heads = 3,
                                      .intermediate_size = 40,
                                      .max_position_embeddings = 16,
                                      .hidden_dropout_prob = 0};
static const T5Config kSmallT5 = {.vocab_size = 61,
                                  .d_model = 24,
                                  .d_kv = 8,
                                  .d_ff = 40,
                                  .num_layers = 2,
                                  .num_decoder_layers = 2,
                                  .num_heads = 3};
static const VitConfig kSmallVit = {.image_size = 8,
                                    .patch_size = 4,
                                    .hidden_size = 24,
                                    .num_hidden_layers = 2,
                                    .num_attention_heads = 3,
                                    .intermediate_size = 40,
                                    .num_classes = 5};
static const LstmConfig kSmallLstm = {
    .vocab_size = 61, .embedding_size = 12, .hidden_size = 24, .num_layers = 2, .dropout = 0};
static const DlrmConfig kSmallDlrm = {
    .dense_features = 4, .table_rows = {7, 9}, .embedding_dim = 6, .bottom = {8}, .top = {16}};
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
  CHECK(num_parameters(*Bert(BertConfig{})) == 109'514'298);
  CHECK(num_parameters(*T5(T5Config{})) == 60'506'624);
  CHECK(num_parameters(*Vit(VitConfig{})) == 86'567'656);
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

// Largest change of the logits at each place when the token at `changed` becomes another one.
template <class Model>
static at::Tensor change_by_place(Model& model, at::Tensor input, std::int64_t changed) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const at::Tensor before = model->forward(input);
  input.select(1, changed).add_(1).remainder_(61);
  return (model->forward(input) - before).abs().amax({0, 2});
}

TEST_CASE("llama and the lstm look only backwards, bert to both sides") {
  torch::manual_seed(1);
  const at::Tensor input = torch::randint(61, {2, 16});
  Llama llama(kSmallLlama);
  Lstm lstm(kSmallLstm);
  Bert bert(kSmallBert);
  for (const at::Tensor& change :
       {change_by_place(llama, input.clone(), 10), change_by_place(lstm, input.clone(), 10)}) {
    CHECK(change.slice(0, 0, 10).max().item<float>() == 0);
    CHECK(change.slice(0, 10).min().item<float>() > 0);
  }
  CHECK(change_by_place(bert, input.clone(), 10).min().item<float>() > 0);
}

TEST_CASE("what is padding changes nothing before it, in bert and in t5's source") {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  Bert bert(kSmallBert);
  T5 t5(kSmallT5);
  bert->eval();
  t5->eval();
  at::Tensor input = torch::randint(61, {2, 16});
  const at::Tensor targets = torch::randint(61, {2, 5});
  const at::Tensor mask = torch::ones({2, 16}, torch::kLong);
  mask.slice(1, 9).zero_();
  const at::Tensor bert_before = bert->forward(input, mask).slice(1, 0, 9);
  const at::Tensor t5_before = t5->forward(input, targets, mask);
  const at::Tensor t5_unmasked = t5->forward(input, targets);
  input.slice(1, 9).add_(1).remainder_(61);
  CHECK(torch::equal(bert->forward(input, mask).slice(1, 0, 9), bert_before));
  CHECK(torch::equal(t5->forward(input, targets, mask), t5_before));
  CHECK(!torch::equal(t5->forward(input, targets), t5_unmasked));
}

TEST_CASE("t5's decoder sees the whole source and the targets before") {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  T5 t5(kSmallT5);
  t5->eval();
  at::Tensor source = torch::randint(61, {2, 7});
  at::Tensor targets = torch::randint(61, {2, 9});
  const at::Tensor before = t5->forward(source, targets);
  CHECK(before.sizes() == at::IntArrayRef({2, 9, 61}));
  targets.select(1, 6).add_(1).remainder_(61);
  const at::Tensor change = (t5->forward(source, targets) - before).abs().amax({0, 2});
  CHECK(change.slice(0, 0, 6).max().item<float>() == 0);
  CHECK(change.slice(0, 6).min().item<float>() > 0);
  targets.select(1, 6).add_(60).remainder_(61);
  source.select(1, 6).add_(1).remainder_(61);
  CHECK((t5->forward(source, targets) - before).abs().amax({0, 2}).min().item<float>() > 0);
}

TEST_CASE("a config that cannot be is named") {
  CHECK_THROWS_WITH_AS(Llama(LlamaConfig{.num_attention_heads = 4, .num_key_value_heads = 3}),
                       doctest::Contains("num_attention_heads is 4, not a multiple of num_key_value_heads 3"),
                       c10::Error);
  CHECK_THROWS_WITH_AS(Bert(BertConfig{.vocab_size = 9, .hidden_size = 10, .num_attention_heads = 4}),
                       doctest::Contains("hidden_size is 10, not a multiple of num_attention_heads 4"),
                       c10::Error);
  CHECK_THROWS_WITH_AS(Vit(VitConfig{.image_size = 9, .patch_size = 4}),
                       doctest::Contains("image_size is 9, not a multiple of patch_size 4"), c10::Error);
  CHECK_THROWS_WITH_AS(Dlrm(kSmallDlrm)->forward(torch::zeros({2, 4}), torch::zeros({2, 3}, torch::kLong)),
                       doctest::Contains("a sample has 3 categories, but there are 2 tables"), c10::Error);
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
  CHECK(seen == std::set<std::string_view>{"bert", "dcn", "deepfm", "dlrm", "gpt2", "llama", "lstm", "mlp",
                                           "resnet", "t5", "vit", "wide_deep", "word2vec"});

  torch::manual_seed(1);
  const at::Tensor text = torch::randint(61, {2, 16});
  const at::Tensor numbers = torch::randn({8, 3}), ids = torch::randint(40, {8, 5});
  const std::vector<std::pair<Config, std::vector<at::Tensor>>> small = {
      {kSmallBert, {text}},
      {DcnConfig{.ids = 40, .fields = 5, .numbers = 3, .embedding_dim = 4, .hidden = {8}}, {numbers, ids}},
      {DeepFmConfig{.ids = 40, .fields = 5, .numbers = 3, .factors = 4, .hidden = {8}}, {numbers, ids}},
      {kSmallDlrm, {torch::randn({8, 4}), torch::randint(7, {8, 2})}},
      {kSmallGpt, {text}},
      {kSmallLlama, {text}},
      {kSmallLstm, {text}},
      {MlpConfig{.in_features = 6, .hidden = {16}, .out_features = 3, .dropout = 0.1},
       {torch::randn({8, 6})}},
      {kSmallResnet, {torch::randn({8, 3, 32, 32})}},
      {kSmallT5, {text, text.slice(1, 0, 12)}},
      {kSmallVit, {torch::randn({8, 3, 8, 8})}},
      {WideDeepConfig{.ids = 40, .fields = 5, .numbers = 3, .embedding_dim = 4, .hidden = {8}},
       {numbers, ids}},
      {Word2VecConfig{.words = 40, .embedding_dim = 8, .negatives = 4},
       {torch::randint(40, {8}), torch::randint(40, {8, 5})}}};
  CHECK(small.size() == seen.size());
  for (const auto& [config, inputs] : small) {
    CAPTURE(config.index());
    torch::manual_seed(1);
    torch::nn::AnyModule model = make(config);
    torch::optim::Adam optimizer(model.ptr()->parameters(), 0.01);
    const auto loss = [&] {
      const at::Tensor logits =
          inputs.size() == 1 ? model.forward(inputs[0]) : model.forward(inputs[0], inputs[1]);
      if (logits.dim() == 1)
        return torch::binary_cross_entropy_with_logits(logits,
                                                       torch::arange(logits.size(0)).remainder(2).to(logits));
      const at::Tensor rows = logits.flatten(0, -2);
      return torch::nn::functional::cross_entropy(rows, torch::arange(rows.size(0)) % rows.size(1));
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

TEST_CASE("deepfm's pairs are products of all pairs of fields") {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  DeepFm model(DeepFmConfig{.ids = 9, .fields = 3, .numbers = 2, .factors = 4, .hidden = {5}});
  const at::Tensor numbers = torch::randn({2, 2}), ids = torch::tensor({{1, 4, 7}, {2, 4, 8}});
  auto parameters = model->named_parameters();
  torch::nn::init::normal_(parameters["rows.weight"]);
  for (const auto& item : parameters)
    if (item.key() != "rows.weight") item.value().zero_();  // the deep part says nothing
  const at::Tensor rows = parameters["rows.weight"].index({ids});
  at::Tensor wanted = rows.select(2, 0).sum(1);
  for (std::int64_t a = 0; a < 3; ++a)
    for (std::int64_t b = 0; b < a; ++b)
      wanted = wanted + (rows.select(1, a).slice(1, 1) * rows.select(1, b).slice(1, 1)).sum(1);
  CHECK(model->forward(numbers, ids).allclose(wanted));
}

TEST_CASE("wide and deep without hidden layers is logistic regression") {
  WideDeep model(WideDeepConfig{.ids = 9, .fields = 3, .numbers = 2, .hidden = {}});
  CHECK(num_parameters(*model) == 9 + 2 + 1);
}

TEST_CASE("a model or flavor that does not exist is not found") {
  CHECK(find("gpt2", "124M") == Config(Gpt2Config{}));
  CHECK(!find("gpt2", "125M"));
  CHECK(!find("gpt3", ""));
}
