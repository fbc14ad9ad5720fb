// SPDX-License-Identifier: Apache-2.0
// The text of a recipe, parted and measured: what the text datasets start from.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>

#include "shoal/cli/recipe.h"
#include "shoal/cli/task.h"
#include "shoal/data/corpus.h"
#include "shoal/data/token_file.h"

namespace shoal::cli {

struct TextSource {
  data::Split split;
  double trigram_bits_per_byte = 0;
  std::string description;
};

TextSource read_text(const Recipe& recipe);

std::int64_t vocab_size_of(const models::Config& config);  // 0: its inputs are no tokens

// The text in tokens of at most `vocab_size` kinds, from the cache in job.dump_folder if it is of this text.
data::MappedCorpus tokenized(const TextSource& text, const Recipe& recipe, std::int64_t vocab_size);
at::Tensor as_tensor(std::span<const data::Token> tokens);

// A batch of windows [batch, training.seq_len]. What it draws it draws from the generator, another one for
// each batch; as many targets count in every row, whatever is drawn.
using MakeBatch = std::function<Batch(const at::Tensor& windows_BT, at::Generator generator)>;

// A task over windows of tokens.
Task make_window_task(const TextSource& text, data::MappedCorpus tokens, const Recipe& recipe,
                      std::int64_t num_targets, const MakeBatch& make);

}  // namespace shoal::cli
