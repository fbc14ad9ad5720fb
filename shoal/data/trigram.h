// SPDX-License-Identifier: Apache-2.0
// A byte trigram model: what any language model has to beat.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "shoal/data/corpus.h"

namespace shoal::data {

// Interpolated modified Kneser-Ney: P(c | a b), backed by P(c | b), P(c) and 1/256, with three discounts an
// order, estimated from the counts. Chen & Goodman, TR-10-98, Harvard 1998. About 70 MB.
class Trigram {
 public:
  explicit Trigram(const std::vector<Document>& documents);

  double probability(unsigned char c, unsigned char before, unsigned char before_that) const;
  // Mean of -log2 P over every byte; a document starts as if after two line breaks. Throws InvalidInput
  // without bytes.
  double bits_per_byte(const std::vector<Document>& documents) const;

 private:
  // One order: counts by (context, byte), and of each context what Kneser-Ney needs.
  struct Order {
    std::vector<std::uint32_t> counts;     // context × 256 + byte
    std::vector<std::uint64_t> totals;     // by context
    std::vector<double> backed_off;        // by context: the mass that the discounts free
    std::array<double, 4> discounts = {};  // by count, 3 for more
    void finish();
    double probability(std::size_t context, unsigned char c, double lower) const;
  };

  Order trigrams_;
  Order bigrams_;  // counted by how many different bytes come before, as are the unigrams
  Order unigrams_;
};

}  // namespace shoal::data
