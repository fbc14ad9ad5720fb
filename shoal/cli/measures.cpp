// SPDX-License-Identifier: Apache-2.0
// What a model reaches on held-out targets, beside what their frequencies in training alone would.
#include <ATen/Functions.h>
#include <torch/utils.h>

#include <cmath>

#include "shoal/cli/task.h"

namespace shoal::cli {

// The share of pairs of a positive and a negative in which the positive has the larger score; ties count
// half.
static double area_under_roc(const at::Tensor& scores, const at::Tensor& is_positive) {
  const auto [values, inverse, counts] = at::_unique2(scores, /*sorted=*/true, /*return_inverse=*/true,
                                                      /*return_counts=*/true);
  const at::Tensor of_value = counts.to(at::kDouble);
  const at::Tensor middle_rank = of_value.cumsum(0) - (of_value - 1) / 2;
  const double positives = is_positive.sum().item<double>();
  const double negatives = static_cast<double>(is_positive.numel()) - positives;
  const double ranks = middle_rank.index_select(0, inverse).masked_select(is_positive).sum().item<double>();
  return (ranks - positives * (positives + 1) / 2) / (positives * negatives);
}

static double cross_entropy(double share, double probability) {
  return -share * std::log(probability) - (1 - share) * std::log(1 - probability);
}

static std::vector<Measure> binary_measures(const at::Tensor& logits, const at::Tensor& targets,
                                            const at::Tensor& counts) {
  const double log_loss = at::binary_cross_entropy_with_logits(logits, targets).item<double>();
  const double base_rate = (counts[1] / counts.sum()).item<double>();
  return {{"log loss", log_loss, "the base rate", cross_entropy(targets.mean().item<double>(), base_rate)},
          {"AUC", area_under_roc(logits, targets > 0.5), "chance", 0.5}};
}

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
    if (targets.is_floating_point()) {
      scores.push_back(logits.flatten());
      all_targets.push_back(targets.to(at::kDouble));
      continue;
    }
    const at::Tensor counting = (targets != kIgnored).nonzero().squeeze(1);
    const at::Tensor rows = logits.flatten(0, -2).index_select(0, counting);
    all_targets.push_back(targets.index_select(0, counting));
    scores.push_back(at::log_softmax(rows, 1).gather(1, all_targets.back().unsqueeze(1)).squeeze(1));
    right.push_back(rows.argmax(1) == all_targets.back());
  }
  model.ptr()->train(was_training);
  return right.empty()
             ? binary_measures(at::cat(scores), at::cat(all_targets), task.target_counts)
             : class_measures(at::cat(scores), at::cat(right), at::cat(all_targets), task.target_counts);
}

}  // namespace shoal::cli
