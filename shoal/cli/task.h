// SPDX-License-Identifier: Apache-2.0
// What a recipe learns: where batches come from, what is held out, and how results read. One file a dataset.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/cli/recipe.h"
#include "shoal/sharding/layout.h"
#include "shoal/train/batch.h"

namespace shoal::cli {

constexpr std::int64_t kIgnored = -100;  // cross_entropy's default: such a target does not count

// Held-out targets in batches of one shape; the last is filled up with targets that do not count.
struct HeldOut {
  std::int64_t num_batches = 0;
  std::function<Batch(std::int64_t index)> batch;
  std::function<std::int64_t(std::int64_t index)> num_targets;  // that count
  std::int64_t num_bytes = 0;  // of the text they stand for; 0: it is no text
};

// Makes the text of a sample with the trained model.
using Sampler = std::function<std::string(torch::nn::AnyModule& model)>;

// A figure over all held-out targets, beside what is reached without looking at the inputs.
struct Measure {
  std::string name;  // "accuracy"
  double value = 0;
  std::string baseline_name;  // "the commonest target"
  double baseline = 0;
};

// Samples of the endless row of epochs: those that a rank takes of the micro-batch that begins at `position`.
struct Share {
  std::int64_t position = 0;
  std::int64_t samples = 0;  // of the micro-batch
  sharding::Range part;      // of these

  std::int64_t begin() const { return position + part.begin; }
  std::int64_t count() const { return part.end - part.begin; }
};

// In memory that is no tensor allocator's: what a task keeps is not counted as what a step takes.
at::Tensor zeros_apart(at::IntArrayRef shape, at::ScalarType dtype);
at::Tensor apart(const at::Tensor& tensor);  // a copy

// Those samples of a batch.
Batch part_of(const Batch& batch, sharding::Range part);

struct Task {
  std::string description;  // "text: 715 documents, 3,788,319 tokens"
  std::string unit;         // what a target is: "tokens", "bytes", "images"
  std::int64_t units_per_sample = 0;
  std::int64_t num_samples = 0;   // of an epoch
  std::uint64_t dataset_key = 0;  // of the samples' bytes: a run does not go on with others
  // The same whenever asked, on any thread; and the parts of a micro-batch together are what it is whole.
  std::function<Batch(const Share& share)> batch;
  HeldOut held_out;
  std::optional<double> trigram_bits_per_byte;  // on the same held-out bytes, fitted on the same text
  Sampler sample;                               // null: there is nothing to write
  std::optional<double> best_auc;               // of what knows how held-out targets were drawn
  // How often each target was among those trained on, of classes or of {0, 1}; undefined: there is nothing to
  // measure but the loss and what `trigram_bits_per_byte` stands beside.
  at::Tensor target_counts;
};

at::Tensor logits_of(torch::nn::AnyModule& model, const Batch& batch);

// Mean cross entropy over the targets that count; of targets that are floats, the binary one.
at::Tensor loss_of(torch::nn::AnyModule& model, const Batch& batch);

// Of classes: bits per target and accuracy.
std::vector<Measure> measures_of(torch::nn::AnyModule& model, const Task& task);

// Batch and targets of the shapes that `make_task` gives, made of zeros: all that a capture needs.
Batch example_batch(const Recipe& recipe, std::int64_t samples);
// The same with what a model can read at random, and some targets that do not count.
Batch random_batch(const Recipe& recipe, std::int64_t samples, std::uint64_t seed);

// What a window of `time` tokens becomes when spans of it are cut out: the lengths of the rest, with one
// sentinel a span, and of what was cut out, with its sentinels.
struct CorruptedSizes {
  std::int64_t spans = 0;
  std::int64_t noise = 0;  // tokens cut out
  std::int64_t inputs = 0;
  std::int64_t targets = 0;
};
CorruptedSizes corrupted_sizes(std::int64_t time);

Task make_text_task(const Recipe& recipe);
Task make_bytes_task(const Recipe& recipe);
Task make_image_task(const Recipe& recipe);
Task make_masked_text_task(const Recipe& recipe);
Task make_corrupted_text_task(const Recipe& recipe);
Task make_digits_task(const Recipe& recipe);
Task make_files_task(const Recipe& recipe);
Task make_clicks_task(const Recipe& recipe);
Task make_criteo_task(const Recipe& recipe);
Task make_words_task(const Recipe& recipe);
Task make_task(const Recipe& recipe);

}  // namespace shoal::cli
