// SPDX-License-Identifier: Apache-2.0
// dataset.name = "text": windows of tokens, each token's target the next one. B batch, T time, V vocabulary.
#include <ATen/Functions.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "shoal/base/error.h"
#include "shoal/cli/sample.h"
#include "shoal/cli/task.h"
#include "shoal/cli/text_source.h"
#include "shoal/data/raw_tokens.h"
#include "shoal/data/sampler.h"
#include "shoal/data/token_file.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

namespace {
// Tokens that lie in a file.
struct Tokens {
  std::int64_t count = 0;
  std::function<void(std::int64_t begin, std::int64_t count, std::int64_t* to)> copy;
};
}  // namespace

// Row i of the whole held-out text begins at token i × T and targets the T tokens after it, so each token but
// the first, which is the end of no text, is a target once.
static HeldOut held_out_of(const Tokens& tokens, std::int64_t batch, std::int64_t time,
                           std::int64_t num_bytes) {
  const std::int64_t num_targets = tokens.count - 1;
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
    tokens.copy(begin, length, inputs.mutable_data_ptr<std::int64_t>());
    tokens.copy(begin + 1, length, targets.mutable_data_ptr<std::int64_t>());
    return {{"inputs", inputs.view({batch, time})}, {"targets", targets.view({batch, time})}};
  };
  return result;
}

static Task task_of_windows(const Recipe& recipe, const Tokens& tokens, const Tokens& held_out,
                            std::int64_t held_out_bytes) {
  const std::int64_t batch = recipe.training.local_batch_size;
  const std::int64_t time = recipe.training.seq_len;
  const data::Order order = {.seed = static_cast<std::uint64_t>(recipe.training.seed),
                             .num_samples = data::num_windows(tokens.count, time + 1)};
  Task task;
  task.unit = "tokens";
  task.units_per_sample = time;
  task.num_samples = order.num_samples;
  task.batch = [=, copy = tokens.copy](const Share& share) -> Batch {
    const at::Tensor inputs = at::empty({share.count(), time}, at::kLong);
    const at::Tensor targets = at::empty({share.count(), time}, at::kLong);
    auto* input = inputs.mutable_data_ptr<std::int64_t>();
    auto* target = targets.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t window : data::samples_of(order, share.begin(), share.count())) {
      const std::int64_t begin = data::begin_of_window(window, time + 1);
      copy(begin, time, input);
      copy(begin + 1, time, target);
      input += time;
      target += time;
    }
    return {{"inputs", inputs}, {"targets", targets}};
  };
  task.held_out = held_out_of(held_out, batch, time, held_out_bytes);
  return task;
}

// dataset.path = "ids.bin": token ids that another tool has written; the last of them are held out.
static Task make_ids_task(const Recipe& recipe) {
  const std::string& path = recipe.dataset.path;
  const std::int64_t width = recipe.dataset.token_bytes;
  const auto tokens = std::make_shared<const data::RawTokens>(path, static_cast<int>(width),
                                                              vocab_size_of(recipe.model.config));
  const std::int64_t held_out = recipe.dataset.held_out_bytes / width;
  SHOAL_CHECK(held_out > 1 && held_out <= tokens->size() / 2, InvalidInput, "dataset.held_out_bytes is ",
              recipe.dataset.held_out_bytes, ", which is not between two tokens and half of ", path, "'s ",
              tokens->size() * width, " bytes");
  const std::int64_t num_train = tokens->size() - held_out;
  const auto from = [tokens](std::int64_t first) {
    return [=](std::int64_t begin, std::int64_t count, std::int64_t* to) {
      tokens->copy(first + begin, count, to);
    };
  };
  Task task = task_of_windows(recipe, {num_train, from(0)}, {held_out, from(num_train)}, 0);
  task.description = concat(path, ", ", observe::with_commas(num_train), " tokens to train on, ",
                            observe::with_commas(held_out), " held out");
  task.dataset_key = tokens->key();
  return task;
}

Task make_text_task(const Recipe& recipe) {
  if (recipe.dataset.path.ends_with(".bin")) return make_ids_task(recipe);
  const TextSource text = read_text(recipe);
  const auto corpus =
      std::make_shared<const data::MappedCorpus>(tokenized(text, recipe, vocab_size_of(recipe.model.config)));
  const auto tokens_of = [corpus](std::span<const data::Token> tokens) {
    return Tokens{std::ssize(tokens),
                  [corpus, tokens](std::int64_t begin, std::int64_t count, std::int64_t* to) {
                    std::copy_n(tokens.data() + begin, count, to);
                  }};
  };
  Task task = task_of_windows(recipe, tokens_of(corpus->train), tokens_of(corpus->held_out),
                              data::bytes_of(text.split.held_out));
  task.description = concat(text.description, ", ", observe::with_commas(std::ssize(corpus->train)),
                            " tokens of ", observe::with_commas(corpus->bpe.vocab_size()), " kinds");
  task.dataset_key = corpus->key;
  task.trigram_bits_per_byte = text.trigram_bits_per_byte;
  if (recipe.sample.tokens > 0)
    task.sample = [corpus, recipe](torch::nn::AnyModule& model) {
      return sampled_text(model, corpus->bpe, recipe);
    };
  return task;
}

}  // namespace shoal::cli
