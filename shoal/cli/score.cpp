// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/score.h"

#include <ATen/Functions.h>

#include <cmath>
#include <cstdio>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/cli/click_samples.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/serving.h"
#include "shoal/data/click_metrics.h"
#include "shoal/data/sample_reader.h"

namespace shoal::cli {

void check(PsScore& options) {
  SHOAL_CHECK(!options.samples.empty(), InvalidInput, "ps score: no samples. Remedy: files of Criteo's form");
}

// A batch of the size that the graph is for: the last sample stands for those that there are not.
static data::SlotBatch filled_up(data::SlotBatch samples, std::size_t batch) {
  const std::size_t numbers = data::CriteoParser::kNumbers, keys = data::CriteoParser::kSlots;
  while (samples.size() < batch) {
    samples.labels.push_back(samples.labels.back());
    for (std::size_t i = 0; i < numbers; ++i)
      samples.numbers.push_back(samples.numbers[samples.numbers.size() - numbers]);
    for (std::size_t i = 0; i < keys; ++i) samples.keys.push_back(samples.keys[samples.keys.size() - keys]);
  }
  return samples;
}

int ps_score(const PsScore& options) {
  Scorer scorer(options.folder);
  const DatasetName dataset = scorer.recipe().dataset.name;
  SHOAL_CHECK(dataset == DatasetName::Clicks || dataset == DatasetName::Criteo, InvalidInput,
              "ps score: ", options.folder, " is a model of ", name_of(dataset),
              ", and samples here are clicks of Criteo's form");
  DiskFileSystem files;
  const std::vector<std::filesystem::path> paths(options.samples.begin(), options.samples.end());
  const data::CriteoParser parser(click_keys());
  data::SampleReader reader(files, paths, parser, {.is_shuffled = false});
  reader.begin(0);
  const auto batch_of = click_batches(scorer.recipe());
  const auto batch = static_cast<std::size_t>(scorer.batch());
  data::ClickMetrics metrics;
  std::int64_t count = 0;
  for (data::SlotBatch samples; reader.read(samples, batch), samples.size() > 0;) {
    const at::Tensor logits = scorer(batch_of(filled_up(samples, batch))).to(at::kFloat).contiguous();
    const std::span<const float> of_samples(logits.const_data_ptr<float>(), samples.size());
    for (const float logit : of_samples)
      std::printf("%.9g\n", 1 / (1 + std::exp(-static_cast<double>(logit))));
    metrics.add(of_samples, samples.labels);
    count += static_cast<std::int64_t>(samples.size());
  }
  SHOAL_CHECK(std::fflush(stdout) == 0, Infeasible, "ps score: cannot write scores to standard output");
  const data::ClickReport report = metrics.report();
  std::fprintf(stderr, "%lld samples, AUC %.6f, log loss %.6f\n", static_cast<long long>(count), report.auc,
               report.log_loss);
  return 0;
}

}  // namespace shoal::cli
