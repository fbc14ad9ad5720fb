// SPDX-License-Identifier: Apache-2.0
// dataset.name = "corrupted_text": spans of a window are cut out, 15 % of it, and written by the decoder, as
// T5 was trained. A sentinel, X, Y, …, stands for each, and before each in the targets:
//
//   window    the quick brown fox jumps over the lazy dog
//   inputs    the X fox jumps Y lazy dog
//   targets   X quick brown Y over the
//
// B batch, T time of a window.
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/cli/task.h"
#include "shoal/cli/text_source.h"

namespace shoal::cli {

static constexpr double kNoiseShare = 0.15;
static constexpr double kMeanSpan = 3;
static constexpr std::int64_t kStart = 0;  // what a decoder begins with: T5's padding token
CorruptedSizes corrupted_sizes(std::int64_t time) {
  CorruptedSizes sizes;
  sizes.noise = std::max<std::int64_t>(1, std::llround(kNoiseShare * static_cast<double>(time)));
  sizes.spans = std::max<std::int64_t>(1, std::llround(static_cast<double>(sizes.noise) / kMeanSpan));
  sizes.inputs = time - sizes.noise + sizes.spans;
  sizes.targets = sizes.noise + sizes.spans;
  return sizes;
}

// `total` as a sum of `parts` numbers of at least 1, each such sum as likely: where it is cut is drawn.
static std::vector<std::int64_t> random_parts(std::int64_t total, std::int64_t parts,
                                              at::Generator generator) {
  const at::Tensor cuts =
      std::get<0>(at::randperm(total - 1, generator, at::kLong).narrow(0, 0, parts - 1).sort());
  std::vector<std::int64_t> sizes;
  std::int64_t before = 0;
  for (std::int64_t part = 0; part + 1 < parts; ++part) {
    const std::int64_t cut = cuts[part].item<std::int64_t>() + 1;
    sizes.push_back(cut - before);
    before = cut;
  }
  sizes.push_back(total - before);
  return sizes;
}

Task make_corrupted_text_task(const Recipe& recipe) {
  const TextSource text = read_text(recipe);
  const std::int64_t vocab_size = vocab_size_of(recipe.model.config);
  const std::int64_t time = recipe.training.seq_len;
  const CorruptedSizes sizes = corrupted_sizes(time);
  SHOAL_CHECK(time - sizes.noise >= sizes.spans && vocab_size - sizes.spans >= 257, InvalidInput,
              "model.vocab_size: ", vocab_size, " leave no 257 kinds of text beside ", sizes.spans,
              " sentinels of training.seq_len ", time, "; take a larger vocabulary");

  const auto make = [=](const at::Tensor& windows_BT, at::Generator generator) -> Batch {
    const std::int64_t batch = windows_BT.size(0);
    const at::Tensor inputs = at::empty({batch, sizes.inputs}, at::kLong);
    const at::Tensor decoder_inputs = at::full({batch, sizes.targets}, kStart, at::kLong);
    const at::Tensor targets = at::empty({batch, sizes.targets}, at::kLong);
    const auto* from = windows_BT.const_data_ptr<std::int64_t>();
    auto* input = inputs.mutable_data_ptr<std::int64_t>();
    auto* target = targets.mutable_data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < batch; ++row) {
      const auto kept = random_parts(time - sizes.noise, sizes.spans, generator);
      const auto cut_out = random_parts(sizes.noise, sizes.spans, generator);
      for (std::size_t span = 0; span < kept.size(); ++span) {
        const std::int64_t sentinel = vocab_size - 1 - static_cast<std::int64_t>(span);
        input = std::copy_n(from, kept[span], input);
        *input++ = sentinel;
        *target++ = sentinel;
        target = std::copy_n(from + kept[span], cut_out[span], target);
        from += kept[span] + cut_out[span];
      }
    }
    decoder_inputs.narrow(1, 1, sizes.targets - 1).copy_(targets.narrow(1, 0, sizes.targets - 1));
    // Which sentinel comes next is no achievement: only the text counts.
    const at::Tensor counted = targets.masked_fill(targets >= vocab_size - sizes.spans, kIgnored);
    return {{"inputs", inputs}, {"decoder_inputs", decoder_inputs}, {"targets", counted}};
  };
  return make_window_task(text, tokenized(text, recipe, vocab_size - sizes.spans), recipe, sizes.noise, make);
}

}  // namespace shoal::cli
