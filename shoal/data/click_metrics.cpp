// SPDX-License-Identifier: Apache-2.0
// A bin is the logit's sign, exponent and first thirteen bits of mantissa, its size held between 2^-12 and
// 2^5.
#include "shoal/data/click_metrics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>

#include "shoal/base/crc32c.h"
#include "shoal/base/error.h"

namespace shoal::data {

static constexpr int kDropped = 10;  // bits of a float's mantissa
static constexpr std::uint32_t kSmallest = std::bit_cast<std::uint32_t>(0x1p-12f) >> kDropped;
static constexpr std::uint32_t kHalf = (std::bit_cast<std::uint32_t>(0x1p5f) >> kDropped) - kSmallest + 1;
static constexpr std::uint32_t kNumBins = 2 * kHalf;
static constexpr double kLossUnit = 0x1p-26, kPredictedUnit = 0x1p-30;
static constexpr double kLargestLoss = 1 << 16;

static std::uint32_t bin_of(float logit) {
  const float size = std::clamp(std::fabs(logit), 0x1p-12f, 0x1p5f);
  const std::uint32_t above = (std::bit_cast<std::uint32_t>(size) >> kDropped) - kSmallest;
  return std::signbit(logit) ? kHalf - 1 - above : kHalf + above;
}

// A logit in the middle of the bin.
static double logit_of(std::uint32_t bin) {
  const std::uint32_t above = bin < kHalf ? kHalf - 1 - bin : bin - kHalf;
  const auto size = std::bit_cast<float>(((above + kSmallest) << kDropped) + (1u << (kDropped - 1)));
  return bin < kHalf ? -size : size;
}

static double probability_of(double logit) { return 1 / (1 + std::exp(-logit)); }

static double log_loss_of(double logit, bool is_positive) {
  const double wrong_way = is_positive ? -logit : logit;
  return std::max(wrong_way, 0.0) + std::log1p(std::exp(-std::fabs(wrong_way)));
}

static void add_to(std::int64_t& sum, std::int64_t more) {
  SHOAL_CHECK(!__builtin_add_overflow(sum, more, &sum), Infeasible,
              "metrics: the losses of so many samples are beyond 64 bits; report and begin anew more often");
}

// What AUC is made of, for bins in ascending order.
struct Pairs {
  double right = 0, tied = 0;  // tied ones count half
  double negatives = 0, positives = 0;

  void add(double more_negatives, double more_positives) {
    right += more_positives * negatives;
    tied += more_positives * more_negatives;
    negatives += more_negatives;
    positives += more_positives;
  }
  double all() const { return negatives * positives; }
  double auc() const { return (right + tied / 2) / all(); }
};

void ClickMetrics::make_room() {
  if (bins_.empty()) bins_.resize(kNumBins);
}

void ClickMetrics::add(std::span<const float> logits, std::span<const float> labels,
                       std::span<const std::uint64_t> groups) {
  SHOAL_CHECK(labels.size() == logits.size(), InvalidInput, "metrics: ", labels.size(), " labels for ",
              logits.size(), " predictions");
  SHOAL_CHECK(groups.empty() || groups.size() == logits.size(), InvalidInput, "metrics: ", groups.size(),
              " groups for ", logits.size(), " predictions");
  for (std::size_t i = 0; i < logits.size(); ++i) {
    SHOAL_CHECK(!std::isnan(logits[i]), InvalidInput, "metrics: prediction ", i,
                " is not a number; has training diverged?");
    SHOAL_CHECK(labels[i] == 0 || labels[i] == 1, InvalidInput, "metrics: label ", i, " is ", labels[i],
                ", not 0 or 1");
  }
  make_room();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const bool is_positive = labels[i] == 1;
    const std::uint32_t bin = bin_of(logits[i]);
    (is_positive ? bins_[bin].positives : bins_[bin].negatives) += 1;
    const double loss = std::min(log_loss_of(logits[i], is_positive), kLargestLoss);
    add_to(loss_, std::llround(loss / kLossUnit));
    add_to(predicted_, std::llround(probability_of(logits[i]) / kPredictedUnit));
    if (!groups.empty())
      grouped_.push_back(
          {.group = groups[i], .bin = bin, .negatives = !is_positive, .positives = is_positive});
  }
  constexpr std::size_t kFew = 1 << 16;
  if (grouped_.size() > 2 * combined_ + kFew) {
    combine(grouped_);
    combined_ = grouped_.size();
  }
}

// Sorted, and each group and bin once.
void ClickMetrics::combine(std::vector<InGroup>& entries) {
  std::ranges::sort(entries, {}, [](const InGroup& entry) { return std::tuple(entry.group, entry.bin); });
  std::size_t kept = 0;
  for (const InGroup& entry : entries) {
    InGroup* last = kept == 0 ? nullptr : &entries[kept - 1];
    if (last != nullptr && last->group == entry.group && last->bin == entry.bin) {
      last->negatives += entry.negatives;
      last->positives += entry.positives;
    } else {
      entries[kept++] = entry;
    }
  }
  entries.resize(kept);
}

void ClickMetrics::merge(const ClickMetrics& other) {
  if (other.bins_.empty()) return;
  make_room();
  for (std::size_t i = 0; i < kNumBins; ++i) {
    bins_[i].negatives += other.bins_[i].negatives;
    bins_[i].positives += other.bins_[i].positives;
  }
  add_to(loss_, other.loss_);
  add_to(predicted_, other.predicted_);
  grouped_.reserve(grouped_.size() + other.grouped_.size());
  grouped_.insert(grouped_.end(), other.grouped_.begin(), other.grouped_.end());
  combine(grouped_);
  combined_ = grouped_.size();
}

ClickReport ClickMetrics::report() const {
  ClickReport report;
  Pairs pairs;
  std::uint64_t fullest = 0, extreme = 0;
  for (std::uint32_t bin = 0; bin < bins_.size(); ++bin) {
    const Counts& counts = bins_[bin];
    const std::uint64_t both = counts.negatives + counts.positives;
    pairs.add(static_cast<double>(counts.negatives), static_cast<double>(counts.positives));
    report.samples += static_cast<std::int64_t>(both);
    report.positives += static_cast<std::int64_t>(counts.positives);
    fullest = std::max(fullest, both);
    if (std::fabs(logit_of(bin)) > 16) extreme += both;
  }
  if (report.samples == 0) return report;
  const auto samples = static_cast<double>(report.samples), positives = static_cast<double>(report.positives);
  if (pairs.all() > 0) {
    report.auc = pairs.auc();
    report.auc_within = pairs.tied / 2 / pairs.all();
  }
  const double share = positives / samples;
  const auto entropy = [](double part) { return part > 0 ? -part * std::log(part) : 0; };
  report.log_loss = static_cast<double>(loss_) * kLossUnit / samples;
  report.base_log_loss = entropy(share) + entropy(1 - share);
  report.calibration = static_cast<double>(predicted_) * kPredictedUnit / positives;
  report.equal_share = static_cast<double>(fullest) / samples;
  report.extreme_share = static_cast<double>(extreme) / samples;

  constexpr double kParts = 10;
  double seen = 0;
  for (std::uint32_t bin = 0; bin < bins_.size(); ++bin) {
    const auto observed = static_cast<double>(bins_[bin].positives);
    const double both = observed + static_cast<double>(bins_[bin].negatives);
    if (both == 0) continue;
    if (seen >= samples * static_cast<double>(report.parts.size()) / kParts) report.parts.emplace_back();
    CalibrationPart& part = report.parts.back();
    part.samples += static_cast<std::int64_t>(both);
    part.predicted += both * probability_of(logit_of(bin));
    part.observed += observed;
    seen += both;
  }
  for (CalibrationPart& part : report.parts) {
    part.predicted /= static_cast<double>(part.samples);
    part.observed /= static_cast<double>(part.samples);
  }

  std::vector<InGroup> grouped = grouped_;
  combine(grouped);
  double sum = 0, weights = 0;
  for (std::size_t i = 0; i < grouped.size();) {
    Pairs of_group;
    const std::uint64_t group = grouped[i].group;
    for (; i < grouped.size() && grouped[i].group == group; ++i)
      of_group.add(grouped[i].negatives, grouped[i].positives);
    if (of_group.all() == 0) continue;
    const double weight = of_group.negatives + of_group.positives;
    sum += weight * of_group.auc();
    weights += weight;
    ++report.groups;
  }
  if (weights > 0) report.grouped_auc = sum / weights;
  return report;
}

// Numbers of 8 bytes: loss, predictions, entries of both kinds, the entries; then a checksum.
std::string ClickMetrics::bytes() const {
  std::vector<std::uint64_t> words = {static_cast<std::uint64_t>(loss_),
                                      static_cast<std::uint64_t>(predicted_), 0, 0};
  for (std::uint32_t bin = 0; bin < bins_.size(); ++bin)
    if (bins_[bin].negatives + bins_[bin].positives > 0) {
      words.insert(words.end(), {bin, bins_[bin].negatives, bins_[bin].positives});
      ++words[2];
    }
  std::vector<InGroup> grouped = grouped_;
  combine(grouped);
  words[3] = grouped.size();
  for (const InGroup& entry : grouped)
    words.insert(words.end(),
                 {entry.group, entry.bin, (std::uint64_t{entry.negatives} << 32) | entry.positives});
  std::string text(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(std::uint64_t));
  return text + hex(crc32c(text));
}

ClickMetrics ClickMetrics::from_bytes(std::string_view bytes) {
  constexpr std::size_t kChecksum = 8, kHead = 4, kEntry = 3;
  const auto must = [&](bool is_so) {
    SHOAL_CHECK(is_so, Corrupt, "metrics: ", bytes.size(), " bytes are not what a worker wrote");
  };
  must(bytes.size() >= kChecksum + kHead * sizeof(std::uint64_t) &&
       (bytes.size() - kChecksum) % sizeof(std::uint64_t) == 0);
  const std::string_view text = bytes.substr(0, bytes.size() - kChecksum);
  must(hex(crc32c(text)) == bytes.substr(text.size()));
  std::vector<std::uint64_t> words(text.size() / sizeof(std::uint64_t));
  std::memcpy(words.data(), text.data(), text.size());
  must(words[2] <= words.size() && words[3] <= words.size() &&
       words.size() == kHead + kEntry * (words[2] + words[3]));
  ClickMetrics metrics;
  metrics.make_room();
  metrics.loss_ = static_cast<std::int64_t>(words[0]);
  metrics.predicted_ = static_cast<std::int64_t>(words[1]);
  for (std::size_t i = 0; i < words[2] + words[3]; ++i) {
    const std::uint64_t* entry = &words[kHead + kEntry * i];
    if (i < words[2]) {
      must(entry[0] < kNumBins);
      metrics.bins_[entry[0]] = {.negatives = entry[1], .positives = entry[2]};
    } else {
      must(entry[1] < kNumBins);
      metrics.grouped_.push_back({.group = entry[0],
                                  .bin = static_cast<std::uint32_t>(entry[1]),
                                  .negatives = static_cast<std::uint32_t>(entry[2] >> 32),
                                  .positives = static_cast<std::uint32_t>(entry[2])});
    }
  }
  metrics.combined_ = metrics.grouped_.size();
  return metrics;
}

std::vector<std::string> likely_reasons(const ClickReport& report, double known_keys) {
  std::vector<std::string> reasons;
  const auto percent = [](double share) { return std::lround(100 * share); };
  if (report.samples == 0) return {"there were no samples"};
  if (report.positives == 0 || report.positives == report.samples)
    return {concat("all ", report.samples, " labels are ", report.positives == 0 ? 0 : 1,
                   ": AUC wants both; is the label read from the right column?")};
  const auto positives = static_cast<double>(report.positives);
  const double negatives = static_cast<double>(report.samples) - positives;
  // Of the AUC of predictions that know nothing: Mann and Whitney, 1947.
  const double chance = std::sqrt((positives + negatives + 1) / (12 * positives * negatives));
  constexpr double kNear = 0.02, kErrors = 3;
  const double above = report.auc - 0.5;
  if (above < -std::max(kNear, kErrors * chance))
    return {"AUC is below 0.5 by more than chance: labels or predictions have the wrong sign"};
  if (above > std::max(kNear, kErrors * chance)) return {};

  if (report.equal_share > 0.9)
    reasons.push_back(
        concat(percent(report.equal_share),
               " % of predictions are equal: the model was not trained, or does not see the ids"));
  if (known_keys < 0.5)
    reasons.push_back(
        concat(percent(1 - known_keys),
               " % of keys have no row: other files, slots or slot_bits than in training, or an "
               "admission that is too strict"));
  if (report.extreme_share > 0.1)
    reasons.push_back(
        concat(percent(report.extreme_share), " % of logits are beyond ±16: the learning rate is too large"));
  if (kErrors * chance > kNear)
    reasons.push_back(concat("there are too few samples: ", report.positives, " with label 1 of ",
                             report.samples, " tell AUC to ±", std::round(1000 * kErrors * chance) / 1000));
  if (reasons.empty())
    reasons.emplace_back(
        "predictions differ but say nothing of the labels: labels may be shuffled against the samples, ids "
        "hashed "
        "anew each run, or the model has seen too few samples of each id");
  if (report.log_loss > 1.1 * report.base_log_loss)
    reasons.push_back(concat("the log loss is ", report.log_loss, ", above the ", report.base_log_loss,
                             " of always predicting the share of clicks: the learning rate is too large, or "
                             "training has only begun"));
  return reasons;
}

}  // namespace shoal::data
