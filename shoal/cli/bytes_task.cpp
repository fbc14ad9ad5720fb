// SPDX-License-Identifier: Apache-2.0
// dataset.name = "bytes": the next byte of the text from the ones before it, each one-hot: in_features / 256
// of them.
#include <ATen/Functions.h>

#include <algorithm>
#include <memory>

#include "shoal/base/error.h"
#include "shoal/cli/task.h"
#include "shoal/cli/text_source.h"
#include "shoal/data/sampler.h"
#include "shoal/data/token_file.h"

namespace shoal::cli {

static constexpr std::int64_t kBytes = 256;
// Documents in a row, `context` line breaks before each.
static std::string bytes_of_all(const std::vector<data::Document>& documents, std::int64_t context) {
  std::string all;
  for (const data::Document& document : documents)
    all += std::string(static_cast<std::size_t>(context), '\n') + document.text;
  return all;
}

// Where the bytes of the documents themselves are among those of `bytes_of_all`.
static std::vector<std::int64_t> places_of(const std::vector<data::Document>& documents,
                                           std::int64_t context) {
  std::vector<std::int64_t> places;
  std::int64_t at = 0;
  for (const data::Document& document : documents) {
    at += context;
    for (std::size_t i = 0; i < document.text.size(); ++i) places.push_back(at++);
  }
  return places;
}

// The rows that predict the bytes at these places; rows beyond them do not count.
static Batch rows_at(const std::string& bytes, const std::vector<std::int64_t>& places, std::int64_t batch,
                     std::int64_t context, at::ScalarType type) {
  const at::Tensor contexts = at::zeros({batch, context, 1}, at::kLong);
  const at::Tensor targets = at::full({batch}, kIgnored, at::kLong);
  auto* to = contexts.mutable_data_ptr<std::int64_t>();
  auto* target = targets.mutable_data_ptr<std::int64_t>();
  const auto byte_at = [&](std::int64_t place) {
    return static_cast<std::int64_t>(static_cast<unsigned char>(bytes[static_cast<std::size_t>(place)]));
  };
  for (const std::int64_t place : places) {
    for (std::int64_t at = place - context; at < place; ++at) *to++ = byte_at(at);
    *target++ = byte_at(place);
  }
  const at::Tensor one_hot = at::zeros({batch, context, kBytes}, type).scatter_(2, contexts, 1);
  return {{"inputs", one_hot.flatten(1)}, {"targets", targets}};
}

Task make_bytes_task(const Recipe& recipe) {
  const TextSource text = read_text(recipe);
  const std::int64_t context = std::get<models::MlpConfig>(recipe.model.config).in_features / kBytes;
  const std::int64_t batch = recipe.training.local_batch_size;
  const auto type = recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat;
  const auto train = std::make_shared<const std::string>(bytes_of_all(text.split.train, context));
  const auto held_out = std::make_shared<const std::string>(bytes_of_all(text.split.held_out, context));
  const auto places =
      std::make_shared<const std::vector<std::int64_t>>(places_of(text.split.held_out, context));
  const auto train_places =
      std::make_shared<const std::vector<std::int64_t>>(places_of(text.split.train, context));
  const data::Order order = {.seed = static_cast<std::uint64_t>(recipe.training.seed),
                             .num_samples = static_cast<std::int64_t>(train_places->size())};

  Task task;
  task.description = text.description;
  task.unit = "bytes";
  task.units_per_sample = 1;
  task.num_samples = order.num_samples;
  task.dataset_key = data::key_of(text.split, 0);
  task.batch = [=](const Share& share) {
    std::vector<std::int64_t> drawn = data::samples_of(order, share.begin(), share.count());
    for (std::int64_t& sample : drawn) sample = (*train_places)[static_cast<std::size_t>(sample)];
    return rows_at(*train, drawn, share.count(), context, type);
  };
  const auto num_places = static_cast<std::int64_t>(places->size());
  task.held_out.num_bytes = num_places;
  task.held_out.num_batches = (num_places + batch - 1) / batch;
  task.held_out.num_targets = [=](std::int64_t index) { return std::min(batch, num_places - index * batch); };
  task.held_out.batch = [=, count = task.held_out.num_targets](std::int64_t index) {
    const auto first = places->begin() + index * batch;
    return rows_at(*held_out, {first, first + count(index)}, batch, context, type);
  };
  task.trigram_bits_per_byte = text.trigram_bits_per_byte;
  return task;
}

}  // namespace shoal::cli
