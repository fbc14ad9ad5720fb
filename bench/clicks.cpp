// SPDX-License-Identifier: Apache-2.0
// What tables learn from generated clicks (data::ClickWorld), each sample predicted before it is trained on:
// a logistic regression and a factorisation machine, with all rows kept, with rows that expire, and with ids
// modulo a tenth of their number. Beside the oracle's AUC.
//
//   bench/clicks [--samples=400000] [--days=10] [--new-ids=0.1] [--drift=0] [--max-rows=0] [--batch=512]
//                [--rate=0.02]
//
// --max-rows: 0 is half of what the table that keeps all has in the end. AUC is that of the second half of
// days.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "shoal/data/click_metrics.h"
#include "shoal/data/click_world.h"
#include "shoal/ps/table.h"

namespace {

using shoal::data::ClickMetrics;
using shoal::data::ClickWorld;
using shoal::data::SlotBatch;

struct Options {
  std::uint64_t samples = 400'000;
  std::uint32_t days = 10;
  std::uint64_t max_rows = 0;
  std::size_t batch = 512;
  float rate = 0.02f;
  shoal::data::ClickWorldOptions world = {.new_ids = 0.1};
};

constexpr std::size_t kFields = ClickWorld::kFields;
const shoal::data::KeyLayout kLayout;

// A row is a weight and factors.
class Model {
 public:
  Model(std::string name, std::uint32_t factors, const Options& options, std::uint64_t max_rows = 0,
        std::uint64_t modulus = 0)
      : name_(std::move(name)),
        factors_(factors),
        modulus_(modulus),
        table_(definition(factors, options, max_rows)) {}

  void step(SlotBatch batch) {
    const std::size_t width = 1 + factors_;
    if (modulus_ > 0)
      for (std::size_t i = 0; i < batch.keys.size(); ++i) batch.keys[i] = shrunk(batch.keys[i]);
    // The bias is a key too.
    std::vector<std::uint64_t> keys = batch.keys;
    const std::uint64_t bias = kLayout.key(kFields, 0);
    keys.push_back(bias);
    std::ranges::sort(keys);
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    const auto place_of = [&](std::uint64_t key) {
      return static_cast<std::size_t>(std::ranges::lower_bound(keys, key) - keys.begin());
    };
    std::vector<float> rows(keys.size() * width), gradients(rows.size()), shows(keys.size()),
        clicks(keys.size());
    table_.pull(keys, rows);
    std::vector<float> logits;
    std::vector<float> sums(factors_);
    std::vector<std::size_t> places(kFields + 1);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      std::ranges::fill(sums, 0.0f);
      float logit = 0, squares = 0;
      for (std::size_t f = 0; f <= kFields; ++f) {
        places[f] = place_of(f < kFields ? batch.keys[i * kFields + f] : bias);
        const float* const row = &rows[places[f] * width];
        logit += row[0];
        for (std::size_t k = 0; k < factors_ && f < kFields; ++k) {
          sums[k] += row[1 + k];
          squares += row[1 + k] * row[1 + k];
        }
      }
      for (const float sum : sums) logit += sum * sum / 2;
      logit -= squares / 2;
      logits.push_back(logit);
      const float error = (1 / (1 + std::exp(-logit)) - batch.labels[i]) / static_cast<float>(batch.size());
      for (std::size_t f = 0; f <= kFields; ++f) {
        float* const gradient = &gradients[places[f] * width];
        const float* const row = &rows[places[f] * width];
        gradient[0] += error;
        for (std::size_t k = 0; k < factors_ && f < kFields; ++k)
          gradient[1 + k] += error * (sums[k] - row[1 + k]);
        shows[places[f]] += 1;
        clicks[places[f]] += batch.labels[i];
      }
    }
    metrics_.add(logits, batch.labels);
    table_.push({.keys = keys, .gradients = gradients, .shows = shows, .clicks = clicks});
  }

  void end_day(std::uint32_t day, bool counts) {
    std::printf("  day %u: %s AUC %.4f, %lld rows", day, name_.c_str(), metrics_.report().auc,
                static_cast<long long>(table_.num_rows()));
    table_.set_day(day + 1);
    const shoal::ps::Shrunk shrunk = table_.shrink();
    std::printf(", %lld expire\n",
                static_cast<long long>(shrunk.low_score + shrunk.unseen + shrunk.over_bound));
    if (counts) all_.merge(metrics_);
    metrics_ = {};
  }
  double print(double oracle) const {
    const auto report = all_.report();
    std::printf("%-28s AUC %.4f (%.4f below the oracle), log loss %.4f, %lld rows\n", name_.c_str(),
                report.auc, oracle - report.auc, report.log_loss, static_cast<long long>(table_.num_rows()));
    return report.auc;
  }
  std::int64_t num_rows() const { return table_.num_rows(); }

 private:
  static shoal::ps::Definition definition(std::uint32_t factors, const Options& options,
                                          std::uint64_t max_rows) {
    shoal::ps::RowOptimizer adagrad = {.rule = shoal::ps::RowRule::Adagrad, .rate = options.rate};
    shoal::ps::Definition made = {
        .name = "clicks",
        .seed = 1,
        .parts = {{.width = 1 + factors,
                   .optimizer = adagrad,
                   .initial = {.rule = shoal::ps::InitialRule::Normal, .scale = 0.01f}}}};
    made.scored = true;
    if (max_rows > 0) made.life = {.decay = 0.9f, .max_unseen_days = 4, .max_rows = max_rows};
    return made;
  }
  std::uint64_t shrunk(std::uint64_t key) const {
    const std::uint64_t slot = key >> kLayout.id_bits();
    return kLayout.key(slot, (key ^ kLayout.key(slot, 0)) % modulus_);
  }

  std::string name_;
  std::size_t factors_;
  std::uint64_t modulus_;
  shoal::ps::Table table_;
  ClickMetrics metrics_, all_;
};

// The oracle's AUC of the days that count.
double run(const Options& options, std::span<Model* const> models) {
  ClickMetrics oracle;
  for (std::uint32_t day = 0; day < options.days; ++day) {
    const ClickWorld world(options.world, day);
    const bool counts = day >= options.days / 2;
    SlotBatch batch;
    std::vector<float> logits;
    for (std::uint64_t i = 0; i < options.samples; ++i) {
      const auto sample = world.sample(i);
      append(sample, kLayout, batch);
      logits.push_back(static_cast<float>(sample.logit));
      if (batch.size() < options.batch && i + 1 < options.samples) continue;
      for (Model* model : models) model->step(batch);
      if (counts) oracle.add(logits, batch.labels);
      batch.clear();
      logits.clear();
    }
    for (Model* model : models) model->end_day(day, counts);
    std::fflush(stdout);
  }
  return oracle.report().auc;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], value = argument.substr(argument.find('=') + 1);
    if (argument.starts_with("--samples="))
      options.samples = std::stoull(value);
    else if (argument.starts_with("--days="))
      options.days = static_cast<std::uint32_t>(std::stoul(value));
    else if (argument.starts_with("--new-ids="))
      options.world.new_ids = std::stod(value);
    else if (argument.starts_with("--drift="))
      options.world.drift = std::stod(value);
    else if (argument.starts_with("--max-rows="))
      options.max_rows = std::stoull(value);
    else if (argument.starts_with("--batch="))
      options.batch = std::stoull(value);
    else if (argument.starts_with("--rate="))
      options.rate = std::stof(value);
    else {
      std::fputs(
          "usage: clicks [--samples=400000] [--days=10] [--new-ids=0.1] [--drift=0] [--max-rows=0] "
          "[--batch=512] [--rate=0.02]\n",
          stderr);
      return 2;
    }
  }
  constexpr std::uint32_t kFactors = 8;
  std::uint64_t all_ids = 0;
  const ClickWorld world(options.world);
  for (std::size_t field = 0; field < kFields; ++field) all_ids += world.ids_of_field(field);
  Model linear("logistic regression", 0, options), machine("factorisation machine", kFactors, options),
      modulo("the same, ids modulo a tenth", kFactors, options, 0, all_ids / kFields / 10);
  Model* const kept[] = {&linear, &machine, &modulo};
  const double oracle = run(options, kept);
  const std::uint64_t bound =
      options.max_rows > 0 ? options.max_rows : static_cast<std::uint64_t>(machine.num_rows()) / 2;
  Model expiring("the same, rows expire", kFactors, options, bound);
  Model* const expires[] = {&expiring};
  run(options, expires);
  std::printf("oracle AUC %.4f; bound of rows %llu\n", oracle, static_cast<unsigned long long>(bound));
  for (Model* model : {&linear, &machine, &modulo, &expiring}) model->print(oracle);
  return 0;
}
