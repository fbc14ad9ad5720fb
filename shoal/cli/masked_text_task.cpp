// SPDX-License-Identifier: Apache-2.0
// dataset.name = "masked_text": of a window's tokens 15 % are targets, found from both sides. Eight of ten
// such tokens are masked, one is another token, one stays, as BERT was trained. B batch, T time, N targets of
// a row.
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "shoal/cli/task.h"
#include "shoal/cli/text_source.h"

namespace shoal::cli {

static constexpr double kTargetShare = 0.15;
static constexpr double kMaskedShare = 0.8;
static constexpr double kReplacedShare = 0.1;
Task make_masked_text_task(const Recipe& recipe) {
  const TextSource text = read_text(recipe);
  const std::int64_t mask_token = vocab_size_of(recipe.model.config) - 1;  // which the text does not have
  const std::int64_t num_targets =
      std::max<std::int64_t>(1, std::llround(kTargetShare * static_cast<double>(recipe.training.seq_len)));

  const auto make = [=](const at::Tensor& windows_BT, at::Generator generator) -> Batch {
    const at::Tensor order_BT = at::rand(windows_BT.sizes(), generator, at::kFloat).argsort(std::int64_t{1});
    const at::Tensor places_BN = order_BT.narrow(1, 0, num_targets);
    const at::Tensor chosen_BN = windows_BT.gather(1, places_BN);
    const at::Tensor draw_BN = at::rand(places_BN.sizes(), generator, at::kFloat);
    const at::Tensor others_BN = at::randint(mask_token, places_BN.sizes(), generator, at::kLong);
    const at::Tensor changed_BN = at::where(draw_BN < kMaskedShare + kReplacedShare, others_BN, chosen_BN);
    const at::Tensor shown_BN = changed_BN.masked_fill(draw_BN < kMaskedShare, mask_token);
    return {{"inputs", windows_BT.scatter(1, places_BN, shown_BN)},
            {"targets", at::full_like(windows_BT, kIgnored).scatter(1, places_BN, chosen_BN)}};
  };
  return make_window_task(text, tokenized(text, recipe, mask_token), recipe, num_targets, make);
}

}  // namespace shoal::cli
