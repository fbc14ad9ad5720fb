// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/text_source.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/data/hash.h"
#include "shoal/data/sampler.h"
#include "shoal/data/trigram.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

TextSource read_text(const Recipe& recipe) {
  auto documents =
      recipe.dataset.path.empty() ? data::find_corpus({}) : data::read_corpus(recipe.dataset.path);
  const auto num_documents = static_cast<std::int64_t>(documents.size());
  TextSource source = {.split = data::split(std::move(documents), recipe.dataset.held_out_bytes,
                                            static_cast<std::uint64_t>(recipe.training.seed))};
  source.trigram_bits_per_byte = data::Trigram(source.split.train).bits_per_byte(source.split.held_out);
  source.description = concat(
      recipe.dataset.path.empty() ? "Python's library and licence texts" : recipe.dataset.path, ", ",
      observe::with_commas(num_documents), " documents, ", human_bytes(data::bytes_of(source.split.train)),
      " to train on, ", human_bytes(data::bytes_of(source.split.held_out)), " held out");
  return source;
}

std::int64_t vocab_size_of(const models::Config& config) {
  return std::visit(
      [](const auto& of_model) -> std::int64_t {
        if constexpr (requires { of_model.vocab_size; }) return of_model.vocab_size;
        return 0;
      },
      config);
}

data::MappedCorpus tokenized(const TextSource& text, const Recipe& recipe, std::int64_t vocab_size) {
  const std::filesystem::path cache = std::filesystem::path(recipe.job.dump_folder) / "tokens.bin";
  const std::uint64_t key = data::key_of(text.split, vocab_size);
  if (auto corpus = data::map_tokens(cache); corpus && corpus->key == key) return std::move(*corpus);
  data::write_tokens(cache, data::tokenize(text.split, vocab_size), key);
  auto corpus = data::map_tokens(cache);
  SHOAL_CHECK(corpus && corpus->key == key, Infeasible, cache.string(),
              ": what was written does not read back");
  return std::move(*corpus);
}

at::Tensor as_tensor(std::span<const data::Token> tokens) {
  at::Tensor result = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kLong);
  std::ranges::copy(tokens, result.mutable_data_ptr<std::int64_t>());
  return result;
}

// How often each of `vocab_size` tokens stands in the text.
static at::Tensor counts_of(std::span<const data::Token> tokens, std::int64_t vocab_size) {
  at::Tensor counts = at::zeros({vocab_size}, at::kDouble);
  auto* count = counts.mutable_data_ptr<double>();
  for (const data::Token token : tokens) ++count[token];
  return apart(counts);
}

Task make_window_task(const TextSource& text, data::MappedCorpus tokens, const Recipe& recipe,
                      std::int64_t num_targets, const MakeBatch& make) {
  const auto corpus = std::make_shared<const data::MappedCorpus>(std::move(tokens));
  const std::int64_t batch = recipe.training.local_batch_size;
  const std::int64_t time = recipe.training.seq_len;
  const auto seed = static_cast<std::uint64_t>(recipe.training.seed);
  const auto num_tokens = static_cast<std::int64_t>(corpus->train.size());
  const auto num_held_out = static_cast<std::int64_t>(corpus->held_out.size()) / (batch * time);
  SHOAL_CHECK(num_held_out > 0, InvalidInput, "dataset.held_out_bytes: ", recipe.dataset.held_out_bytes,
              " bytes are less than a batch of ", batch, " sequences of training.seq_len ", time,
              " tokens; hold out more");
  const data::Order order = {.seed = seed, .num_samples = data::num_windows(num_tokens, time)};
  const auto generator = [seed](std::int64_t index) {
    return at::detail::createCPUGenerator(data::mix(seed ^ data::mix(static_cast<std::uint64_t>(index))));
  };

  Task task;
  task.description = concat(text.description, ", ", observe::with_commas(num_tokens), " tokens of ",
                            observe::with_commas(corpus->bpe.vocab_size()), " kinds");
  task.unit = "tokens";
  task.units_per_sample = time;
  task.num_samples = order.num_samples;
  task.dataset_key = corpus->key;
  task.target_counts = counts_of(corpus->train, vocab_size_of(recipe.model.config));
  task.batch = [=](const Share& share) {
    const at::Tensor windows_BT = at::empty({share.samples, time}, at::kLong);
    auto* to = windows_BT.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t window : data::samples_of(order, share.position, share.samples))
      to = std::copy_n(corpus->train.data() + data::begin_of_window(window, time), time, to);
    // What is drawn is drawn for the whole micro-batch.
    return part_of(make(windows_BT, generator(share.position)), share.part);
  };
  task.held_out.num_batches = num_held_out;
  task.held_out.num_targets = [=](std::int64_t) { return batch * num_targets; };
  task.held_out.batch = [=](std::int64_t index) {
    const auto begin = static_cast<std::size_t>(index * batch * time);
    const auto windows = corpus->held_out.subspan(begin, static_cast<std::size_t>(batch * time));
    return make(as_tensor(windows).view({batch, time}), generator(-1 - index));
  };
  return task;
}

}  // namespace shoal::cli
