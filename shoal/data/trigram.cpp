// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/trigram.h"

#include <algorithm>
#include <cmath>

#include "shoal/base/error.h"

namespace shoal::data {

static constexpr std::size_t kBytes = 256;
static constexpr unsigned char kStart = '\n';

template <class Visit>
static void for_each_trigram(const std::vector<Document>& documents, Visit visit) {
  for (const Document& document : documents) {
    unsigned char before_that = kStart;
    unsigned char before = kStart;
    for (const char character : document.text) {
      const auto c = static_cast<unsigned char>(character);
      visit(before_that, before, c);
      before_that = before;
      before = c;
    }
  }
}

Trigram::Trigram(const std::vector<Document>& documents) {
  trigrams_.counts.assign(kBytes * kBytes * kBytes, 0);
  bigrams_.counts.assign(kBytes * kBytes, 0);
  unigrams_.counts.assign(kBytes, 0);
  for_each_trigram(documents, [&](std::size_t a, std::size_t b, std::size_t c) {
    if (trigrams_.counts[(a * kBytes + b) * kBytes + c]++ == 0)
      if (bigrams_.counts[b * kBytes + c]++ == 0) ++unigrams_.counts[c];
  });
  for (Order* order : {&trigrams_, &bigrams_, &unigrams_}) order->finish();
}

void Trigram::Order::finish() {
  std::array<double, 5> with_count = {};  // how many n-grams were seen 1, 2, 3, 4 times
  for (const std::uint32_t count : counts)
    if (count >= 1 && count <= 4) ++with_count[count];
  for (std::size_t n = 1; n <= 3; ++n) {
    const double y = with_count[1] / std::max(1.0, with_count[1] + 2 * with_count[2]);
    const double next = with_count[n] > 0 ? with_count[n + 1] / with_count[n] : 0;
    const double most = static_cast<double>(n) - 0.05;  // counts of few texts give estimates out of range
    discounts[n] = std::clamp(static_cast<double>(n) - static_cast<double>(n + 1) * y * next, 0.05, most);
  }
  const std::size_t num_contexts = counts.size() / kBytes;
  totals.assign(num_contexts, 0);
  backed_off.assign(num_contexts, 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    totals[i / kBytes] += counts[i];
    backed_off[i / kBytes] += discounts[std::min<std::uint32_t>(counts[i], 3)];
  }
}

double Trigram::Order::probability(std::size_t context, unsigned char c, double lower) const {
  if (totals[context] == 0) return lower;
  const std::uint32_t count = counts[context * kBytes + c];
  const double kept = count - discounts[std::min<std::uint32_t>(count, 3)];
  return (kept + backed_off[context] * lower) / static_cast<double>(totals[context]);
}

double Trigram::probability(unsigned char c, unsigned char before, unsigned char before_that) const {
  const double p1 = unigrams_.probability(0, c, 1.0 / kBytes);
  const double p2 = bigrams_.probability(before, c, p1);
  return trigrams_.probability(before_that * kBytes + before, c, p2);
}

double Trigram::bits_per_byte(const std::vector<Document>& documents) const {
  const std::int64_t num_bytes = bytes_of(documents);
  SHOAL_CHECK(num_bytes > 0, InvalidInput, "bits per byte of a text without bytes");
  double bits = 0;
  for_each_trigram(documents, [&](unsigned char before_that, unsigned char before, unsigned char c) {
    bits -= std::log2(probability(c, before, before_that));
  });
  return bits / static_cast<double>(num_bytes);
}

}  // namespace shoal::data
