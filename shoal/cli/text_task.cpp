// SPDX-License-Identifier: Apache-2.0
// dataset.name = "text": windows of tokens, each token's target the next one. B batch, T time, V vocabulary.
#include <ATen/Functions.h>
#include <ATen/core/Generator.h>
#include <c10/core/InferenceMode.h>
#include <torch/utils.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "shoal/base/error.h"
#include "shoal/cli/task.h"
#include "shoal/cli/text_source.h"
#include "shoal/data/sampler.h"
#include "shoal/data/token_file.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

static constexpr std::int64_t kIgnored = -100;  // cross_entropy's default: such a target does not count

static at::Tensor as_tensor(const std::vector<data::Token>& tokens) {
  at::Tensor result = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), result.mutable_data_ptr<std::int64_t>());
  return result;
}

static data::TokenizedCorpus tokenized(const data::Split& split, std::int64_t vocab_size,
                                       const std::string& folder) {
  const std::filesystem::path cache = std::filesystem::path(folder) / "tokens.bin";
  const std::uint64_t key = data::key_of(split, vocab_size);
  if (auto corpus = data::read_tokens(cache, key)) return std::move(*corpus);
  data::TokenizedCorpus corpus = data::tokenize(split, vocab_size);
  data::write_tokens(cache, corpus, key);
  return corpus;
}

// Row i of the whole held-out text begins at token i × T and targets the T tokens after it, so each token but
// the first, which is the end of no text, is a target once.
static HeldOut held_out_of(const at::Tensor& tokens, std::int64_t batch, std::int64_t time,
                           std::int64_t num_bytes) {
  const std::int64_t num_targets = tokens.numel() - 1;
  const std::int64_t per_batch = batch * time;
  HeldOut result;
  result.num_bytes = num_bytes;
  result.num_batches = (num_targets + per_batch - 1) / per_batch;
  result.num_targets = [=](std::int64_t index) {
    return std::min(per_batch, num_targets - index * per_batch);
  };
  result.batch = [=, count = result.num_targets](std::int64_t index) -> Batch {
    const std::int64_t begin = index * per_batch;
    const std::int64_t length = count(index);
    const at::Tensor inputs = at::zeros({per_batch}, at::kLong);
    const at::Tensor targets = at::full({per_batch}, kIgnored, at::kLong);
    inputs.narrow(0, 0, length).copy_(tokens.narrow(0, begin, length));
    targets.narrow(0, 0, length).copy_(tokens.narrow(0, begin + 1, length));
    return {{"inputs", inputs.view({batch, time})}, {"targets", targets.view({batch, time})}};
  };
  return result;
}

// Token by token: the top_k likeliest, by their probabilities at that temperature.
static std::string generate(torch::nn::AnyModule& model, const data::Bpe& bpe, const Recipe& recipe) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.ptr()->is_training();
  model.ptr()->eval();
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(recipe.training.seed));
  std::vector<data::Token> tokens = {bpe.end_of_text()};
  for (const data::Token token : data::encode(bpe, recipe.sample.prompt)) tokens.push_back(token);
  for (std::int64_t count = 0; count < recipe.sample.tokens; ++count) {
    const at::Tensor all_T = as_tensor(tokens);
    const at::Tensor last_T =
        all_T.slice(0, std::max<std::int64_t>(0, all_T.numel() - recipe.training.seq_len));
    const at::Tensor logits_V =
        model.forward(last_T.unsqueeze(0)).select(1, -1).squeeze(0).narrow(0, 0, bpe.vocab_size());
    const auto [values, ids] = logits_V.topk(std::min(recipe.sample.top_k, bpe.vocab_size()));
    const at::Tensor drawn =
        at::multinomial(at::softmax(values / recipe.sample.temperature, 0), 1, false, generator);
    const auto next = static_cast<data::Token>(ids[drawn.item<std::int64_t>()].item<std::int64_t>());
    if (next == bpe.end_of_text()) break;
    tokens.push_back(next);
  }
  model.ptr()->train(was_training);
  return data::decode(bpe, tokens);
}

Task make_text_task(const Recipe& recipe) {
  const TextSource text = read_text(recipe);
  const std::int64_t vocab_size = std::get<models::Gpt2Config>(recipe.model.config).vocab_size;
  const auto corpus = std::make_shared<const data::TokenizedCorpus>(
      tokenized(text.split, vocab_size, recipe.job.dump_folder));
  const std::int64_t batch = recipe.training.local_batch_size;
  const std::int64_t time = recipe.training.seq_len;
  const at::Tensor train = as_tensor(corpus->train);
  const data::Windows windows = {.seed = static_cast<std::uint64_t>(recipe.training.seed),
                                 .num_tokens = train.numel(),
                                 .batch = batch,
                                 .length = time + 1};
  static_cast<void>(data::begins(windows, 0));  // too little text is an error now, not at the first step

  Task task;
  task.description = concat(text.description, ", ", observe::with_commas(train.numel()), " tokens of ",
                            observe::with_commas(corpus->bpe.vocab_size()), " kinds");
  task.unit = "tokens";
  task.units_per_step = batch * time;
  task.batch = [=](std::int64_t step) -> Batch {
    const at::Tensor inputs = at::empty({batch, time}, at::kLong);
    const at::Tensor targets = at::empty({batch, time}, at::kLong);
    std::int64_t row = 0;
    for (const std::int64_t begin : data::begins(windows, step)) {
      inputs.select(0, row).copy_(train.narrow(0, begin, time));
      targets.select(0, row).copy_(train.narrow(0, begin + 1, time));
      ++row;
    }
    return {{"inputs", inputs}, {"targets", targets}};
  };
  task.held_out = held_out_of(as_tensor(corpus->held_out), batch, time, data::bytes_of(text.split.held_out));
  task.trigram_bits_per_byte = text.trigram_bits_per_byte;
  if (recipe.sample.tokens > 0)
    task.sample = [corpus, recipe](torch::nn::AnyModule& model) {
      return generate(model, corpus->bpe, recipe);
    };
  return task;
}

}  // namespace shoal::cli
