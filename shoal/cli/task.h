// SPDX-License-Identifier: Apache-2.0
// What a recipe learns: where batches come from, what is held out, and how results read. One file a dataset.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "shoal/cli/recipe.h"
#include "shoal/train/batch.h"

namespace shoal::cli {

// Held-out targets in batches of one shape; the last is filled up with targets that do not count.
struct HeldOut {
  std::int64_t num_batches = 0;
  std::function<Batch(std::int64_t index)> batch;
  std::function<std::int64_t(std::int64_t index)> num_targets;  // that count
  std::int64_t num_bytes = 0;  // of the text they stand for; 0: it is no text
};

// Makes the text of a sample with the trained model.
using Sampler = std::function<std::string(torch::nn::AnyModule& model)>;

struct Task {
  std::string description;  // "text: 715 documents, 3,788,319 tokens"
  std::string unit;         // what a target is: "tokens", "bytes", "images"
  std::int64_t units_per_step = 0;
  std::int64_t num_samples = 0;   // of an epoch
  std::uint64_t dataset_key = 0;  // of the samples' bytes: a run does not go on with others
  // The local batch that begins at this position in the endless row of epochs; the same whenever asked, on
  // any thread.
  std::function<Batch(std::int64_t position)> batch;
  HeldOut held_out;
  std::optional<double> trigram_bits_per_byte;  // on the same held-out bytes, fitted on the same text
  Sampler sample;                               // null: there is nothing to write
};

// Mean cross entropy over the targets that count.
at::Tensor loss_of(torch::nn::AnyModule& model, const Batch& batch);

// Batch and targets of the shapes that `make_task` gives, made of zeros: all that a capture needs.
Batch example_batch(const Recipe& recipe);

Task make_text_task(const Recipe& recipe);
Task make_bytes_task(const Recipe& recipe);
Task make_image_task(const Recipe& recipe);
Task make_task(const Recipe& recipe);

}  // namespace shoal::cli
