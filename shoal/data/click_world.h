// SPDX-License-Identifier: Apache-2.0
// Samples in Criteo's form whose truth is known: clicks are drawn from a hidden factorisation machine. Its
// weights are hashes of (seed, field, id), and a sample is one of (seed, day, index), so that anyone makes
// any part of the data, and the best possible AUC is known.
//
//   id      rank by Zipf's law in its field, and how often that rank's id was replaced until the day
//   logit   bias + Σ wᶠ + Σ ⟨vᶠ, vᵍ⟩ over pairs of fields        weights turn slowly from day to day
//   label   drawn with probability 1 / (1 + exp(−logit))
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/data/criteo.h"
#include "shoal/data/slot_batch.h"

namespace shoal::data {

struct ClickWorldOptions {  // of all days
  std::uint64_t seed = 3;   // with all else as it is here the best AUC is 0.87
  std::uint32_t smallest_field = 10, largest_field = 200'000;  // ids; those between grow by a constant factor
  double zipf = 1.1;                                           // exponent of its law
  double deviation = 0.25;                                     // of first-order weights
  double factor_deviation = 0.2;                               // of each of kFactors
  double click_share = 0.25;                                   // on day 0, about
  double gaps = 0;                                             // share of ids and integers that are missing
  double drift = 0;    // angle, in radians a day, by which weights turn towards others
  double new_ids = 0;  // share of each field's ids that are replaced a day
};

struct ClickSample {                                               // of a day and index
  bool is_click = false;                                           // the label
  double logit = 0;                                                // the truth
  std::array<std::int32_t, CriteoParser::kNumbers> integers = {};  // −1: missing; they say nothing
  std::array<std::uint64_t, CriteoParser::kSlots> ids = {};        // of 32 bits, or kMissing
};

// Throws InvalidInput naming an option that is out of bounds.
void check(const ClickWorldOptions& options);

// A line of Criteo's, with its end.
void append_line(const ClickSample& sample, std::string& text);
// What CriteoParser makes of that line.
void append(const ClickSample& sample, const KeyLayout& layout, SlotBatch& batch);

// Several threads may use one. What it holds of a day takes about 15 MB with fields as they are by default.
class ClickWorld {
 public:
  static constexpr std::size_t kFields = CriteoParser::kSlots, kFactors = 4;  // of the machine

  // Of one day, from 0. Throws InvalidInput as check() does, and for a day by which there are no new ids
  // left.
  explicit ClickWorld(const ClickWorldOptions& options, std::uint32_t day = 0);

  ClickSample sample(std::uint64_t index) const;  // any index
  // How many ids the field has, from 0 to kFields - 1.
  std::uint32_t ids_of_field(std::size_t field) const {
    return static_cast<std::uint32_t>(fields_[field].ids.size());
  }

 private:
  struct Weights {
    float first = 0;
    std::array<float, kFactors> factors = {};
  };
  // By rank. The alias method: Walker 1977; Vose, IEEE TSE 1991.
  struct Field {
    std::vector<std::uint32_t> ids;
    std::vector<Weights> weights;
    std::vector<std::uint64_t> keeps;  // of 2^32: else the other one
    std::vector<std::uint32_t> others;
    Weights of_missing;
  };
  Field make_field(std::size_t field) const;
  Weights weights_of(std::size_t field, std::uint64_t id) const;
  double bias_for(double click_share) const;

  ClickWorldOptions options_;
  std::uint32_t day_;
  std::uint64_t samples_seed_ = 0;
  std::vector<Field> fields_;
  double bias_ = 0;
};

}  // namespace shoal::data
