// SPDX-License-Identifier: Apache-2.0
// Every step of models/, and of Hugging Face's families (tests/golden/graphs, written by
// tests/python/binding/test_graphs.py), can run on parts of its batch.
#include <doctest/doctest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "batch.h"
#include "models/models.h"
#include "shoal/capture/capture.h"
#include "shoal/ir/text.h"

namespace batch_test {

using namespace shoal;
using at::Tensor;

static constexpr std::int64_t kRows = 3;

static Tensor tokens() { return torch::randint(61, {kRows, 8}); }

static Tensor classified(const Tensor& logits, const Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits.reshape({-1, logits.size(-1)}), labels.reshape({-1}));
}

static ir::Graph captured(torch::nn::AnyModule model, std::vector<Tensor> inputs,
                          bool is_regression = false) {
  capture::Request request;
  for (const auto& item : model.ptr()->named_parameters())
    request.parameters.push_back({item.key(), item.value()});
  for (const auto& item : model.ptr()->named_buffers()) request.buffers.push_back({item.key(), item.value()});
  for (const Tensor& tensor : inputs)
    request.inputs.push_back({"x" + std::to_string(request.inputs.size()), tensor});
  request.loss = [&](std::span<const Tensor> in) {
    const Tensor made = in.size() == 3 ? model.forward(in[0], in[1]) : model.forward(in[0]);
    if (is_regression) return torch::nn::functional::binary_cross_entropy_with_logits(made, in.back());
    return classified(made, in.back());
  };
  return capture::capture(request).graph;
}

static std::vector<std::pair<std::string, ir::Graph>> steps_of_models() {
  using namespace models;
  std::vector<std::pair<std::string, ir::Graph>> all;
  const Tensor labels = torch::randint(5, {kRows});
  const auto add = [&](const std::string& name, const Config& config, std::vector<Tensor> inputs) {
    const bool is_regression = inputs.back().is_floating_point();
    all.emplace_back(name, captured(make(config), std::move(inputs), is_regression));
  };
  add("bert",
      BertConfig{.vocab_size = 61,
                 .hidden_size = 24,
                 .num_hidden_layers = 1,
                 .num_attention_heads = 3,
                 .intermediate_size = 40,
                 .max_position_embeddings = 16},
      {tokens(), tokens()});
  const std::vector<Tensor> clicks = {torch::rand({kRows, 3}), torch::randint(40, {kRows, 5}),
                                      torch::rand({kRows})};
  add("dcn", DcnConfig{.ids = 40, .fields = 5, .numbers = 3, .embedding_dim = 4, .hidden = {8}}, clicks);
  add("deepfm", DeepFmConfig{.ids = 40, .fields = 5, .numbers = 3, .factors = 4, .hidden = {8}}, clicks);
  add("dlrm",
      DlrmConfig{.dense_features = 4, .table_rows = {7, 9}, .embedding_dim = 6, .bottom = {8}, .top = {16}},
      {torch::rand({kRows, 4}), torch::randint(7, {kRows, 2}), torch::rand({kRows})});
  add("gpt2", Gpt2Config{.vocab_size = 61, .n_positions = 16, .n_embd = 24, .n_layer = 1, .n_head = 3},
      {tokens(), tokens()});
  add("llama",
      LlamaConfig{.vocab_size = 61,
                  .hidden_size = 24,
                  .intermediate_size = 40,
                  .num_hidden_layers = 1,
                  .num_attention_heads = 4,
                  .num_key_value_heads = 2,
                  .max_position_embeddings = 16},
      {tokens(), tokens()});
  add("lstm", LstmConfig{.vocab_size = 61, .embedding_size = 12, .hidden_size = 24, .num_layers = 2},
      {tokens(), tokens()});
  add("mlp", MlpConfig{.in_features = 6, .hidden = {8}, .out_features = 5},
      {torch::rand({kRows, 6}), labels});
  add("resnet", ResnetConfig{.layers = {1, 1, 1, 1}, .width = 4, .num_classes = 5},
      {torch::rand({kRows, 3, 32, 32}), labels});
  add("t5",
      T5Config{.vocab_size = 61,
               .d_model = 24,
               .d_kv = 8,
               .d_ff = 40,
               .num_layers = 1,
               .num_decoder_layers = 1,
               .num_heads = 3},
      {tokens(), tokens(), tokens()});
  add("vit",
      VitConfig{.image_size = 8,
                .patch_size = 4,
                .hidden_size = 24,
                .num_hidden_layers = 1,
                .num_attention_heads = 3,
                .intermediate_size = 40,
                .num_classes = 5},
      {torch::rand({kRows, 3, 8, 8}), labels});
  add("wide_deep", WideDeepConfig{.ids = 40, .fields = 5, .numbers = 3, .embedding_dim = 4, .hidden = {8}},
      clicks);
  add("wide_deep", WideDeepConfig{.ids = 40, .fields = 5, .numbers = 3, .hidden = {}}, clicks);
  add("word2vec", Word2VecConfig{.words = 40, .embedding_dim = 6, .negatives = 4},
      {torch::randint(40, {kRows}), torch::randint(40, {kRows, 5}), torch::rand({kRows, 5})});
  return all;
}

TEST_CASE("every model's step runs on parts of its batch") {
  std::set<std::string> proved;
  for (const auto& [name, graph] : steps_of_models()) {
    CAPTURE(name);
    for (const std::string& node : nodes_that_gather(graph, kRows)) FAIL_CHECK(node);
    proved.insert(name);
  }
  for (const models::Flavor& flavor : models::flavors()) CHECK(proved.contains(std::string(flavor.model)));
}

TEST_CASE("every step of Hugging Face's families runs on parts of its batch") {
  int num_proved = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/graphs")) {
    CAPTURE(entry.path().string());
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    for (const std::string& node : nodes_that_gather(ir::from_text(text.str()), kRows)) FAIL_CHECK(node);
    ++num_proved;
  }
  CHECK(num_proved >= 7);
}

// The walk itself: an op without a rule is found.
TEST_CASE("a step that needs its batch whole is found") {
  const ir::Graph graph = ir::from_text(R"(graph captured
%0 = input "x" : f32[3, 4]
%1 : f32[3, 4] = aten::relu(self=%0) @forward
%2 : f32[3, 4] = aten::cumsum(self=%1, dim=0, dtype=none) @forward
%3 : f32[4] = aten::select.int(self=%2, dim=0, index=2) @forward
return output "y" %3
)");
  CHECK(nodes_that_gather(graph, 3) == std::vector<std::string>{ir::to_text(graph, graph.nodes[1])});
}

}  // namespace batch_test
