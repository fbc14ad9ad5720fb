// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/click_metrics.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "shoal/base/error_test.h"
#include "shoal/data/hash.h"

using namespace shoal;
using namespace shoal::data;

namespace {

struct Samples {
  std::vector<float> logits, labels;
  std::vector<std::uint64_t> groups;

  void add_to(ClickMetrics& metrics, std::size_t begin, std::size_t end) const {
    metrics.add(std::span(logits).subspan(begin, end - begin), std::span(labels).subspan(begin, end - begin),
                std::span(groups).subspan(begin, end - begin));
  }
};

}  // namespace

static double uniform(std::uint64_t index) { return (static_cast<double>(mix(index) >> 11) + 0.5) * 0x1p-53; }
static double normal(std::uint64_t index) {
  return std::sqrt(-2 * std::log(uniform(2 * index))) * std::cos(2 * M_PI * uniform(2 * index + 1));
}

// Labels are drawn from logits, and predictions are those with noise.
static Samples drawn(std::size_t count, double middle, double deviation, double noise) {
  Samples samples;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double logit = middle + deviation * normal(3 * i);
    samples.logits.push_back(static_cast<float>(logit + noise * normal(3 * i + 1)));
    samples.labels.push_back(uniform((std::uint64_t{1} << 40) + i) < 1 / (1 + std::exp(-logit)) ? 1.0f
                                                                                                : 0.0f);
    samples.groups.push_back(mix(i * 7) % 1000);
  }
  return samples;
}

// By sorting; ties count half.
static double sorted_auc(const std::vector<float>& logits, const std::vector<float>& labels) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return logits[i]; });
  double right = 0, negatives = 0, positives = 0;
  for (std::size_t i = 0; i < order.size();) {
    double more_negatives = 0, more_positives = 0;
    for (const float logit = logits[order[i]]; i < order.size() && logits[order[i]] == logit; ++i)
      (labels[order[i]] == 1 ? more_positives : more_negatives) += 1;
    right += more_positives * (negatives + more_negatives / 2);
    negatives += more_negatives;
    positives += more_positives;
  }
  return right / (negatives * positives);
}

static ClickMetrics of(const Samples& samples) {
  ClickMetrics metrics;
  samples.add_to(metrics, 0, samples.logits.size());
  return metrics;
}

TEST_CASE("what workers counted adds up to what one would have, in every bit") {
  const Samples samples = drawn(100'000, -2, 1, 0.7);
  const ClickMetrics one = of(samples);
  for (const std::size_t workers : {2, 3, 7}) {
    ClickMetrics merged;
    double mean_auc = 0;
    for (std::size_t worker = workers; worker-- > 0;) {
      ClickMetrics part;
      // The first has most.
      const std::size_t begin = worker == 0 ? 0 : 70'000 + 30'000 * (worker - 1) / (workers - 1);
      const std::size_t end = 70'000 + 30'000 * worker / (workers - 1);
      for (std::size_t at = begin; at < end; at += 999) samples.add_to(part, at, std::min(end, at + 999));
      mean_auc += part.report().auc / static_cast<double>(workers);
      merged.merge(ClickMetrics::from_bytes(part.bytes()));
    }
    CHECK(merged.bytes() == one.bytes());
    const ClickReport a = merged.report(), b = one.report();
    CHECK(a.auc == b.auc);
    CHECK(a.grouped_auc == b.grouped_auc);
    CHECK(a.log_loss == b.log_loss);
    CHECK(a.calibration == b.calibration);
    CHECK(a.auc != mean_auc);  // which is what it must not be
  }
}

TEST_CASE("AUC is that of sorted predictions within 1e-4, and within what the report says") {
  struct {
    double middle, deviation, noise;
  } const cases[] = {{0, 1, 0}, {-2, 1, 1}, {-6, 0.3, 0.1}, {3, 4, 2}, {0, 0.01, 0.01}, {-4, 0.02, 0.001}};
  for (const auto& [middle, deviation, noise] : cases) {
    CAPTURE(middle);
    CAPTURE(deviation);
    const Samples samples = drawn(50'000, middle, deviation, noise);
    const ClickReport report = of(samples).report();
    const double exact = sorted_auc(samples.logits, samples.labels);
    CHECK(std::fabs(report.auc - exact) < 1e-4);
    CHECK(std::fabs(report.auc - exact) <= report.auc_within + 1e-12);
  }
}

TEST_CASE("equal predictions count half, and the least and largest are told apart from others") {
  ClickMetrics metrics;
  const std::vector<float> logits = {1, 1, 1, 1}, labels = {1, 0, 0, 1};
  metrics.add(logits, labels);
  CHECK(metrics.report().auc == 0.5);
  CHECK(metrics.report().auc_within == 0.5);
  ClickMetrics apart;
  const std::vector<float> ends = {-std::numeric_limits<float>::infinity(), -1e-30f, 1e-30f, 1e30f};
  const std::vector<float> ascending = {0, 0, 1, 1};
  apart.add(ends, ascending);
  CHECK(apart.report().auc == 1);
}

TEST_CASE("AUC within groups is the mean of groups with both classes, weighted by their samples") {
  const Samples samples = drawn(30'000, -1, 1, 1);
  std::map<std::uint64_t, std::pair<std::vector<float>, std::vector<float>>> groups;
  for (std::size_t i = 0; i < samples.logits.size(); ++i) {
    groups[samples.groups[i]].first.push_back(samples.logits[i]);
    groups[samples.groups[i]].second.push_back(samples.labels[i]);
  }
  double sum = 0, weights = 0;
  std::int64_t both = 0;
  for (const auto& [group, of_group] : groups) {
    const auto& [logits, labels] = of_group;
    const auto positives = std::ranges::count(labels, 1.0f);
    if (positives == 0 || positives == std::ssize(labels)) continue;
    sum += sorted_auc(logits, labels) * static_cast<double>(labels.size());
    weights += static_cast<double>(labels.size());
    ++both;
  }
  const ClickReport report = of(samples).report();
  CHECK(report.groups == both);
  CHECK(std::fabs(report.grouped_auc - sum / weights) < 1e-4);
}

TEST_CASE("log loss and calibration are those of the formulas") {
  const Samples samples = drawn(20'000, -1, 1, 0);
  double loss = 0, predicted = 0, clicks = 0;
  for (std::size_t i = 0; i < samples.logits.size(); ++i) {
    const double p = 1 / (1 + std::exp(-static_cast<double>(samples.logits[i])));
    loss -= samples.labels[i] == 1 ? std::log(p) : std::log(1 - p);
    predicted += p;
    clicks += samples.labels[i];
  }
  const ClickReport report = of(samples).report();
  CHECK(report.log_loss == doctest::Approx(loss / 20'000).epsilon(1e-7));
  CHECK(report.calibration == doctest::Approx(predicted / clicks).epsilon(1e-7));
  const double rate = clicks / 20'000;
  CHECK(report.base_log_loss ==
        doctest::Approx(-rate * std::log(rate) - (1 - rate) * std::log(1 - rate)).epsilon(1e-7));
  REQUIRE(report.parts.size() == 10);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < 10; ++i) {
    const CalibrationPart& part = report.parts[i];
    CHECK(std::abs(part.samples - 2000) < 50);
    CHECK(part.predicted == doctest::Approx(part.observed).epsilon(0.3));
    if (i > 0) CHECK(part.predicted > report.parts[i - 1].predicted);
    total += part.samples;
  }
  CHECK(total == 20'000);
}

TEST_CASE(
    "predictions that are no numbers and labels that are no classes are refused, and nothing is added") {
  ClickMetrics metrics;
  const std::vector<float> logits = {1, std::nanf("")}, labels = {1, 0}, halves = {1, 0.5f};
  CHECK(error_of([&] { metrics.add(logits, labels); }) ==
        "metrics: prediction 1 is not a number; has training diverged?");
  CHECK(error_of([&] { metrics.add(labels, halves); }) == "metrics: label 1 is 0.5, not 0 or 1");
  CHECK(error_of([&] { metrics.add(logits, std::vector<float>{1}); }) ==
        "metrics: 1 labels for 2 predictions");
  CHECK(metrics.report().samples == 0);
}

TEST_CASE("bytes that a worker did not write are refused") {
  const std::string bytes = of(drawn(100, 0, 1, 0)).bytes();
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    CHECK_THROWS_AS(ClickMetrics::from_bytes(damaged), Error);
    CHECK_THROWS_AS(ClickMetrics::from_bytes(std::string_view(bytes).substr(0, at)), Error);
  }
}

TEST_CASE("an AUC near a half gets the likely reasons, and a good one none") {
  const auto first_reason = [](const ClickReport& report, double known_keys = 1) {
    const auto reasons = likely_reasons(report, known_keys);
    return reasons.empty() ? "" : reasons.front();
  };
  Samples samples = drawn(20'000, -1, 1, 0.5);
  CHECK(first_reason(of(samples).report()) == "");
  Samples wrong = samples;
  for (float& logit : wrong.logits) logit = -logit;
  CHECK(first_reason(of(wrong).report()) ==
        "AUC is below 0.5 by more than chance: labels or predictions have the wrong sign");
  Samples shuffled = samples;
  std::ranges::rotate(shuffled.labels, shuffled.labels.begin() + 100);
  CHECK(first_reason(of(shuffled).report()).starts_with("predictions differ but say nothing of the labels"));
  CHECK(first_reason(of(shuffled).report(), 0.03).starts_with("97 % of keys have no row"));
  Samples extreme = shuffled;
  for (float& logit : extreme.logits) logit *= 100;
  CHECK(first_reason(of(extreme).report()).find("% of logits are beyond ±16") != std::string::npos);
  Samples equal = samples;
  std::ranges::fill(equal.logits, -1.0f);
  CHECK(first_reason(of(equal).report()) ==
        "100 % of predictions are equal: the model was not trained, or does not see the ids");
  Samples none = samples;
  std::ranges::fill(none.labels, 0.0f);
  CHECK(first_reason(of(none).report()) ==
        "all 20000 labels are 0: AUC wants both; is the label read from the right column?");
  CHECK(std::isnan(of(none).report().auc));
  const Samples few = {.logits = {1, 2, 3, 4}, .labels = {0, 1, 1, 0}, .groups = {1, 1, 1, 1}};
  CHECK(first_reason(of(few).report()) ==
        "there are too few samples: 2 with label 1 of 4 tell AUC to ±0.968");
  CHECK(first_reason({}) == "there were no samples");
}
