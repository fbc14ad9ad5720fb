// SPDX-License-Identifier: Apache-2.0
// dataset.name = "text": windows of tokens, each token's target the next one. B batch, T time, V vocabulary.
#include <ATen/Functions.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>

#include "shoal/base/error.h"
#include "shoal/cli/sample.h"
#include "shoal/cli/task.h"
#include "shoal/cli/text_source.h"
#include "shoal/data/sampler.h"
#include "shoal/data/token_file.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

static constexpr std::int64_t kIgnored = -100;  // cross_entropy's default: such a target does not count

static at::Tensor as_tensor(std::span<const data::Token> tokens) {
  at::Tensor result = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kLong);
  std::ranges::copy(tokens, result.mutable_data_ptr<std::int64_t>());
  return result;
}

static data::MappedCorpus tokenized(const data::Split& split, std::int64_t vocab_size,
                                    const std::string& folder) {
  const std::filesystem::path cache = std::filesystem::path(folder) / "tokens.bin";
  const std::uint64_t key = data::key_of(split, vocab_size);
  if (auto corpus = data::map_tokens(cache); corpus && corpus->key == key) return std::move(*corpus);
  data::write_tokens(cache, data::tokenize(split, vocab_size), key);
  auto corpus = data::map_tokens(cache);
  SHOAL_CHECK(corpus && corpus->key == key, Infeasible, cache.string(),
              ": what was written does not read back");
  return std::move(*corpus);
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

Task make_text_task(const Recipe& recipe) {
  const TextSource text = read_text(recipe);
  const std::int64_t vocab_size = std::get<models::Gpt2Config>(recipe.model.config).vocab_size;
  const auto corpus =
      std::make_shared<const data::MappedCorpus>(tokenized(text.split, vocab_size, recipe.job.dump_folder));
  const std::int64_t batch = recipe.training.local_batch_size;
  const std::int64_t time = recipe.training.seq_len;
  const auto num_tokens = static_cast<std::int64_t>(corpus->train.size());
  const data::Order order = {.seed = static_cast<std::uint64_t>(recipe.training.seed),
                             .num_samples = data::num_windows(num_tokens, time + 1)};

  Task task;
  task.description = concat(text.description, ", ", observe::with_commas(num_tokens), " tokens of ",
                            observe::with_commas(corpus->bpe.vocab_size()), " kinds");
  task.unit = "tokens";
  task.units_per_step = batch * time;
  task.num_samples = order.num_samples;
  task.dataset_key = corpus->key;
  task.batch = [=](std::int64_t position) -> Batch {
    const at::Tensor inputs = at::empty({batch, time}, at::kLong);
    const at::Tensor targets = at::empty({batch, time}, at::kLong);
    auto* input = inputs.mutable_data_ptr<std::int64_t>();
    auto* target = targets.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t window : data::samples_of(order, position, batch)) {
      const data::Token* from = corpus->train.data() + data::begin_of_window(window, time + 1);
      input = std::copy_n(from, time, input);
      target = std::copy_n(from + 1, time, target);
    }
    return {{"inputs", inputs}, {"targets", targets}};
  };
  task.held_out = held_out_of(as_tensor(corpus->held_out), batch, time, data::bytes_of(text.split.held_out));
  task.trigram_bits_per_byte = text.trigram_bits_per_byte;
  if (recipe.sample.tokens > 0)
    task.sample = [corpus, recipe](torch::nn::AnyModule& model) {
      return sampled_text(model, corpus->bpe, recipe);
    };
  return task;
}

}  // namespace shoal::cli
