// SPDX-License-Identifier: Apache-2.0
// What a model reaches on held-out targets, beside what their frequencies in training alone would.
#include <ATen/Functions.h>
#include <torch/utils.h>

#include <cmath>

#include "shoal/cli/task.h"

namespace shoal::cli {

static std::vector<Measure> class_measures(const at::Tensor& log_likelihoods, const at::Tensor& is_right,
                                           const at::Tensor& targets, const at::Tensor& counts) {
  // One more of each: a target that was never seen in training has some probability.
  const at::Tensor by_frequency = ((counts + 1) / (counts + 1).sum()).log().index_select(0, targets);
  const double commonest = (targets == counts.argmax()).to(at::kDouble).mean().item<double>();
  const double bits = -1 / std::log(2.0);
  return {{"bits per target", bits * log_likelihoods.mean().item<double>(), "frequencies alone",
           bits * by_frequency.mean().item<double>()},
          {"accuracy", is_right.to(at::kDouble).mean().item<double>(), "the commonest target", commonest}};
}

std::vector<Measure> measures_of(torch::nn::AnyModule& model, const Task& task) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.ptr()->is_training();
  model.ptr()->eval();
  std::vector<at::Tensor> scores, right, all_targets;
  for (std::int64_t index = 0; index < task.held_out.num_batches; ++index) {
    const Batch batch = task.held_out.batch(index);
    const at::Tensor logits = logits_of(model, batch).to(at::kDouble);
    const at::Tensor targets = batch["targets"].tensor().flatten();
    const at::Tensor counting = (targets != kIgnored).nonzero().squeeze(1);
    const at::Tensor rows = logits.flatten(0, -2).index_select(0, counting);
    all_targets.push_back(targets.index_select(0, counting));
    scores.push_back(at::log_softmax(rows, 1).gather(1, all_targets.back().unsqueeze(1)).squeeze(1));
    right.push_back(rows.argmax(1) == all_targets.back());
  }
  model.ptr()->train(was_training);
  return class_measures(at::cat(scores), at::cat(right), at::cat(all_targets), task.target_counts);
}

}  // namespace shoal::cli
