// SPDX-License-Identifier: Apache-2.0
// How good predictions of clicks are: AUC, AUC within groups, log loss, calibration. Kept as whole numbers,
// of predictions in narrow bins, so that what workers counted adds up to what one would have: the same bits.
//
//   logit    −3.1      −0.2     0.4             a bin is 1/8192 of an octave of the logit's size
//   bins   …│ 5+  1− │ 2+ 2− │ 7+ 1− │…         AUC: pairs of + and − with the + further right;
//                                               in one bin half
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::data {

// Predictions of about equal size: what they say, and what was.
struct CalibrationPart {
  std::int64_t samples = 0;            // that are in it
  double predicted = 0, observed = 0;  // mean probability, share of clicks
};

struct ClickReport {                                      // of all that was added
  std::int64_t samples = 0, positives = 0;                // and clicks among them
  double auc = std::numeric_limits<double>::quiet_NaN();  // stays so without both classes
  double auc_within = 0;  // of the AUC of sorted predictions; a proof, not a guess
  // Mean over groups with both classes, by samples; stays so without one.
  double grouped_auc = std::numeric_limits<double>::quiet_NaN();
  std::int64_t groups = 0;                 // of those
  double log_loss = 0, base_log_loss = 0;  // the latter of always saying the share of clicks
  double calibration = 0;                  // clicks predicted for one that happened
  std::vector<CalibrationPart> parts;      // ten of about equally many samples, smallest predictions first
  double equal_share = 0;                  // of samples in the fullest bin
  double extreme_share = 0;                // of samples with a logit beyond ±16
};

class ClickMetrics {
 public:
  // A logit and a label of 0 or 1 each; where AUC within groups is wanted, the group of each, as its user.
  // Throws InvalidInput naming the place of what is neither, and has added nothing then.
  void add(std::span<const float> logits, std::span<const float> labels,
           std::span<const std::uint64_t> groups = {});
  // Another one's samples too. Throws Infeasible where a count has no more room.
  void merge(const ClickMetrics& other);
  ClickReport report() const;  // of what was added so far

  // For merging between processes. Throws Corrupt for what was not written by bytes().
  std::string bytes() const;
  static ClickMetrics from_bytes(std::string_view bytes);

 private:
  struct Counts {
    std::uint64_t negatives = 0, positives = 0;
  };
  struct InGroup {
    std::uint64_t group = 0;
    std::uint32_t bin = 0, negatives = 0, positives = 0;
  };
  void make_room();
  static void combine(std::vector<InGroup>& entries);

  std::vector<Counts> bins_;      // all there are; none before the first sample
  std::vector<InGroup> grouped_;  // in no order, and several of one group and bin, until combine()
  std::size_t combined_ = 0;      // entries after the last time
  std::int64_t loss_ = 0;         // in units of 2^-26
  std::int64_t predicted_ = 0;    // sum of probabilities, in units of 2^-30
};

// What may have gone wrong where AUC is not beyond what chance gives, most likely first; none where it is.
// `known_keys`: the share of the samples' keys that have a row, where it is known.
std::vector<std::string> likely_reasons(const ClickReport& report, double known_keys = 1);

}  // namespace shoal::data
