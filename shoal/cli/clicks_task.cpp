// SPDX-License-Identifier: Apache-2.0
// dataset.name = "clicks": samples drawn from a hidden factorisation machine (data/click_world.h), whose best
// possible AUC is known; dataset.name = "criteo": lines of Criteo's form, read into memory. Was it clicked?
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/cli/click_samples.h"
#include "shoal/cli/task.h"
#include "shoal/data/click_metrics.h"
#include "shoal/data/click_world.h"
#include "shoal/data/hash.h"
#include "shoal/data/sample_reader.h"
#include "shoal/data/sampler.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

using data::ClickWorld;
using data::CriteoParser;
using data::SlotBatch;

static constexpr auto kFields = static_cast<std::int64_t>(CriteoParser::kSlots),
                      kNumbers = static_cast<std::int64_t>(CriteoParser::kNumbers);
static const data::KeyLayout kLayout;

namespace {

// From a key to an id of the model: the key itself where there are ids enough, else one drawn by it.
class Ids {
 public:
  explicit Ids(const Recipe& recipe) : modulus_(static_cast<std::uint64_t>(recipe.dataset.modulus)) {
    std::visit(
        [&](const auto& config) {
          if constexpr (requires { config.ids; }) rows_.assign(kFields, config.ids);
          if constexpr (requires { config.table_rows; }) rows_ = config.table_rows;
        },
        recipe.model.config);
  }
  std::int64_t operator()(std::uint64_t key, std::size_t field) const {
    if (modulus_ > 0) {
      const std::uint64_t begin = kLayout.key(field, 0);
      key = begin + (key - begin) % modulus_;
    }
    const auto rows = static_cast<std::uint64_t>(rows_[field]);
    return static_cast<std::int64_t>(key < rows ? key : data::mix(key) % rows);
  }

 private:
  std::uint64_t modulus_;
  std::vector<std::int64_t> rows_;  // by field
};

// Samples of a batch, as tensors.
class Tensors {
 public:
  explicit Tensors(const Recipe& recipe)
      : ids_(recipe), type_(recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat) {}

  Batch operator()(const SlotBatch& samples) const {
    const auto count = static_cast<std::int64_t>(samples.size());
    const at::Tensor numbers = at::empty({count, kNumbers}), targets = at::empty({count}),
                     categories = at::empty({count, kFields}, at::kLong);
    std::ranges::copy(samples.numbers, numbers.mutable_data_ptr<float>());
    std::ranges::copy(samples.labels, targets.mutable_data_ptr<float>());
    auto* to = categories.mutable_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < samples.keys.size(); ++i)
      *to++ = ids_(samples.keys[i], i % CriteoParser::kSlots);
    return {{"inputs", numbers.to(type_)}, {"categories", categories}, {"targets", targets.to(type_)}};
  }

 private:
  Ids ids_;
  at::ScalarType type_;
};

// All of an epoch, as one batch in memory that no step counts.
struct Kept {
  at::Tensor numbers, categories, targets;

  explicit Kept(const Batch& all)
      : numbers(apart(all["inputs"].tensor())),
        categories(apart(all["categories"].tensor())),
        targets(apart(all["targets"].tensor())) {}
  Batch some(const std::function<at::Tensor(const at::Tensor&)>& chosen) const {
    return {{"inputs", chosen(numbers)}, {"categories", chosen(categories)}, {"targets", chosen(targets)}};
  }
};

}  // namespace

std::function<Batch(const SlotBatch& samples)> click_batches(const Recipe& recipe) { return Tensors(recipe); }

data::KeyLayout click_keys() { return kLayout; }

static Batch joined(const std::vector<Batch>& parts) {
  const auto all = [&](const char* item) {
    std::vector<at::Tensor> tensors;
    for (const Batch& part : parts) tensors.push_back(part[item].tensor());
    return at::cat(tensors);
  };
  return {{"inputs", all("inputs")}, {"categories", all("categories")}, {"targets", all("targets")}};
}

// Batches of a row of samples.
static HeldOut held_out_of(std::int64_t samples, std::int64_t batch,
                           std::function<Batch(std::int64_t begin, std::int64_t count)> make) {
  HeldOut held_out;
  held_out.num_batches = samples / batch;
  held_out.num_targets = [=](std::int64_t) { return batch; };
  held_out.batch = [=](std::int64_t index) { return make(index * batch, batch); };
  return held_out;
}

static double oracle_auc(const ClickWorld& world, std::int64_t begin, std::int64_t count) {
  data::ClickMetrics metrics;
  std::vector<float> logits, labels;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto sample = world.sample(static_cast<std::uint64_t>(begin + i));
    logits.push_back(static_cast<float>(sample.logit));
    labels.push_back(sample.is_click ? 1.0f : 0.0f);
  }
  metrics.add(logits, labels);
  return metrics.report().auc;
}

Task make_clicks_task(const Recipe& recipe) {
  const std::int64_t batch = recipe.training.local_batch_size, samples = recipe.dataset.samples,
                     held_out = recipe.dataset.held_out;
  SHOAL_CHECK(held_out >= batch, InvalidInput, "dataset.held_out is ", held_out,
              ", less than a batch of training.local_batch_size, ", batch);
  const data::ClickWorldOptions options = {.seed = static_cast<std::uint64_t>(recipe.dataset.world)};
  const auto world = std::make_shared<const ClickWorld>(options);
  const Tensors tensors(recipe);
  const auto make = [=](std::int64_t begin, std::int64_t count) {
    SlotBatch some;
    for (std::int64_t i = 0; i < count; ++i)
      append(world->sample(static_cast<std::uint64_t>(begin + i)), kLayout, some);
    return tensors(some);
  };
  Task task;
  task.description = concat("clicks: ", observe::with_commas(samples), " samples of world ",
                            recipe.dataset.world, ", ", observe::with_commas(held_out), " held out");
  task.unit = "samples";
  task.units_per_sample = 1;
  task.num_samples = samples;
  task.dataset_key = data::mix(options.seed ^ data::mix(static_cast<std::uint64_t>(samples)) ^
                               static_cast<std::uint64_t>(recipe.dataset.modulus));
  if (recipe.dataset.in_memory) {
    constexpr std::int64_t kAtOnce = 1 << 14;
    std::vector<Batch> parts;
    for (std::int64_t begin = 0; begin < samples; begin += kAtOnce)
      parts.push_back(make(begin, std::min(kAtOnce, samples - begin)));
    const auto kept = std::make_shared<const Kept>(joined(parts));
    task.batch = [=](const Share& share) {
      return kept->some([&](const at::Tensor& all) {
        const std::int64_t begin = share.begin() % samples, first = std::min(share.count(), samples - begin);
        const at::Tensor some = all.narrow(0, begin, first);
        if (first == share.count()) return some;
        return at::cat({some, all.narrow(0, 0, share.count() - first)});
      });
    };
  } else {
    task.batch = [=](const Share& share) {
      const std::int64_t begin = share.begin() % samples, first = std::min(share.count(), samples - begin);
      if (first == share.count()) return make(begin, first);
      return joined({make(begin, first), make(0, share.count() - first)});
    };
  }
  task.held_out = held_out_of(
      held_out, batch, [=](std::int64_t begin, std::int64_t count) { return make(samples + begin, count); });
  task.best_auc = oracle_auc(*world, samples, held_out / batch * batch);
  return task;
}

Task make_criteo_task(const Recipe& recipe) {
  const std::int64_t batch = recipe.training.local_batch_size, held_out = recipe.dataset.held_out;
  const auto seed = static_cast<std::uint64_t>(recipe.training.seed);
  DiskFileSystem files;
  const std::filesystem::path path = recipe.dataset.path;
  std::vector<std::filesystem::path> paths;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.is_regular_file()) paths.push_back(entry.path());
    std::ranges::sort(paths);
  } else {
    paths = {path};
  }
  SHOAL_CHECK(!paths.empty(), InvalidInput, path.string(), ": holds no files");
  const CriteoParser parser(kLayout);
  data::SampleReader reader(files, paths, parser, {.is_shuffled = false});
  reader.begin(0);
  const Tensors tensors(recipe);
  std::vector<Batch> parts;
  std::uint64_t key = data::hash_bytes(path.string());
  for (SlotBatch some; reader.read(some, 1 << 14), some.size() > 0;) {
    for (const std::uint64_t each : some.keys) key = data::mix(key ^ each);
    parts.push_back(tensors(some));
  }
  SHOAL_CHECK(!parts.empty(), InvalidInput, path.string(), ": holds no samples");
  const auto kept = std::make_shared<const Kept>(joined(parts));
  const std::int64_t all = kept->targets.size(0), samples = all - held_out;
  SHOAL_CHECK(held_out >= batch && samples >= batch, InvalidInput, path.string(), ": holds ", all,
              " samples, of which dataset.held_out, ", held_out,
              ", are not trained on; both parts have a batch at least, ", batch);
  const data::Order order = {.seed = seed, .num_samples = samples};
  Task task;
  task.description = concat(path.string(), ": ", observe::with_commas(samples), " samples to train on, ",
                            observe::with_commas(held_out), " held out, the last ones");
  task.unit = "samples";
  task.units_per_sample = 1;
  task.num_samples = samples;
  task.dataset_key = key;
  task.batch = [=](const Share& share) {
    const at::Tensor chosen = at::tensor(data::samples_of(order, share.begin(), share.count()), at::kLong);
    return kept->some([&](const at::Tensor& from) { return from.index_select(0, chosen); });
  };
  task.held_out = held_out_of(held_out, batch, [=](std::int64_t begin, std::int64_t count) {
    return kept->some([&](const at::Tensor& from) { return from.narrow(0, samples + begin, count); });
  });
  return task;
}

}  // namespace shoal::cli
