// SPDX-License-Identifier: Apache-2.0
// shoal generate: text from the newest checkpoint of a recipe's run, or from weights of elsewhere. With
// sample.prompt_tokens it reads and prints token ids, which needs no tokenizer.
#include <ATen/Functions.h>
#include <ATen/core/Generator.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "shoal/base/error.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/sample.h"
#include "shoal/data/token_file.h"

namespace shoal::cli {

static at::Tensor as_tensor(const std::vector<data::Token>& tokens) {
  const at::Tensor result = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kLong);
  std::ranges::copy(tokens, result.mutable_data_ptr<std::int64_t>());
  return result;
}

std::vector<data::Token> drawn_after(torch::nn::AnyModule& model, std::vector<data::Token> tokens,
                                     const Recipe& recipe, std::int64_t vocab_size,
                                     std::optional<data::Token> end) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.ptr()->is_training();
  model.ptr()->eval();
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(recipe.training.seed));
  for (std::int64_t count = 0; count < recipe.sample.tokens; ++count) {
    const at::Tensor all_T = as_tensor(tokens);
    const at::Tensor last_T =
        all_T.slice(0, std::max<std::int64_t>(0, all_T.numel() - recipe.training.seq_len));
    const at::Tensor logits_V =
        model.forward(last_T.unsqueeze(0)).select(1, -1).squeeze(0).narrow(0, 0, vocab_size);
    const auto [values, ids] = logits_V.topk(std::min(recipe.sample.top_k, vocab_size));
    const at::Tensor drawn =
        at::multinomial(at::softmax(values / recipe.sample.temperature, 0), 1, false, generator);
    const auto next = static_cast<data::Token>(ids[drawn.item<std::int64_t>()].item<std::int64_t>());
    if (next == end) break;
    tokens.push_back(next);
  }
  model.ptr()->train(was_training);
  return tokens;
}

std::string sampled_text(torch::nn::AnyModule& model, const data::Bpe& bpe, const Recipe& recipe) {
  std::vector<data::Token> prompt = {bpe.end_of_text()};
  for (const data::Token token : data::encode(bpe, recipe.sample.prompt)) prompt.push_back(token);
  return data::decode(bpe,
                      drawn_after(model, std::move(prompt), recipe, bpe.vocab_size(), bpe.end_of_text()));
}

// Tokens that a model knows; 0: its inputs are none.
static std::int64_t vocab_size_in(const Recipe& recipe) {
  Recipe copy = recipe;
  for (const Option& option : options_of(copy))
    if (option.section == "model" && option.key == "vocab_size")
      return *std::get<std::int64_t*>(option.target);
  return 0;
}

int generate(const Recipe& recipe, const Options&) {
  if (!recipe.sample.inputs_file.empty()) return forward(recipe);
  const std::int64_t vocab_size = vocab_size_in(recipe);
  SHOAL_CHECK(vocab_size > 0 && recipe.dataset.name == DatasetName::Text, InvalidInput, "model.name ",
              recipe.model.name, " with dataset.name ", settings_of(recipe).at("dataset.name"),
              " writes no text");
  DiskFileSystem files;
  torch::nn::AnyModule model = trained_model(files, recipe);
  std::vector<data::Token> prompt;
  for (const std::int64_t token : recipe.sample.prompt_tokens) {
    SHOAL_CHECK(token < vocab_size, InvalidInput, "sample.prompt_tokens: token ", token,
                " is not one of model.vocab_size = ", vocab_size);
    prompt.push_back(static_cast<data::Token>(token));
  }
  std::optional<data::MappedCorpus> corpus;
  if (prompt.empty()) {
    const auto path = std::filesystem::path(recipe.job.dump_folder) / "tokens.bin";
    corpus = data::map_tokens(path);
    SHOAL_CHECK(corpus, InvalidInput, path.string(),
                ": there is no tokenizer; train the recipe first, or give --sample.prompt_tokens=[…]");
  }
  if (!recipe.sample.logits_file.empty()) {
    if (corpus) prompt = data::encode(corpus->bpe, recipe.sample.prompt);
    const torch::NoGradGuard no_grad;
    model.ptr()->eval();
    write_tensors({{"logits", model.forward(as_tensor(prompt).unsqueeze(0))}}, recipe.sample.logits_file);
    if (corpus) prompt.clear();
  }
  std::string text;
  if (corpus) {
    text = sampled_text(model, corpus->bpe, recipe);
  } else {
    for (const data::Token token : drawn_after(model, prompt, recipe, vocab_size, std::nullopt))
      text += (text.empty() ? "" : " ") + std::to_string(token);
  }
  text += "\n";
  const bool is_whole =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  SHOAL_CHECK(is_whole, Infeasible, "cannot write the text to standard output");
  return 0;
}

}  // namespace shoal::cli
