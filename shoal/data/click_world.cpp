// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/click_world.h"

#include <charconv>
#include <cmath>

#include "shoal/base/crc32c.h"
#include "shoal/base/error.h"
#include "shoal/data/hash.h"

namespace shoal::data {

static constexpr double kHalfPi = 1.57079632679489661923;

// Numbers from a key, as many as are asked for.
class Draws {
 public:
  explicit Draws(std::uint64_t key) : key_(key) {}
  std::uint64_t next() { return mix(key_ + 0x9e3779b97f4a7c15u * ++count_); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Variance 1: twelve uniform numbers added up, in whole numbers, so that all machines have the same bits.
  double normal() {
    std::int64_t sum = 0;
    for (int word = 0; word < 3; ++word) {
      const std::uint64_t drawn = next();
      for (int shift = 0; shift < 64; shift += 16)
        sum += static_cast<std::int64_t>((drawn >> shift) & 0xffff);
    }
    return static_cast<double>(sum - std::int64_t{6} * 0xffff) * 0x1p-16;
  }

 private:
  std::uint64_t key_;
  std::uint64_t count_ = 0;
};

// A bijection of 32 bits: Wellons' lowbias32.
static std::uint32_t scattered(std::uint32_t number) {
  number = (number ^ (number >> 16)) * 0x7feb352du;
  number = (number ^ (number >> 15)) * 0x846ca68bu;
  return number ^ (number >> 16);
}

void check(const ClickWorldOptions& options) {
  const auto must = [](bool holds, const char* name, double value, const char* wanted) {
    SHOAL_CHECK(holds, InvalidInput, "generated data: ", name, " is ", value, ", not ", wanted);
  };
  const auto is_share = [](double value) { return value >= 0 && value < 1; };
  must(options.smallest_field >= 1, "smallest_field", options.smallest_field, "1 or more");
  must(options.largest_field >= options.smallest_field && options.largest_field <= 1 << 20, "largest_field",
       options.largest_field, "smallest_field to 1048576");
  must(options.zipf >= 0 && options.zipf <= 10, "zipf", options.zipf, "0 to 10");
  must(options.deviation >= 0 && options.deviation <= 10, "deviation", options.deviation, "0 to 10");
  must(options.factor_deviation >= 0 && options.factor_deviation <= 10, "factor_deviation",
       options.factor_deviation, "0 to 10");
  must(options.click_share > 0 && options.click_share < 1, "click_share", options.click_share,
       "between 0 and 1");
  must(is_share(options.gaps), "gaps", options.gaps, "0 to 1");
  must(options.drift >= 0 && options.drift <= kHalfPi, "drift", options.drift, "0 to 1.57");
  must(is_share(options.new_ids), "new_ids", options.new_ids, "0 to 1");
}

ClickWorld::ClickWorld(const ClickWorldOptions& options, std::uint32_t day) : options_(options), day_(day) {
  check(options);
  for (std::size_t field = 0; field < kFields; ++field) fields_.push_back(make_field(field));
  if (day == 0) {
    bias_ = bias_for(options.click_share);
  } else {
    bias_ = ClickWorld(options, 0).bias_;
  }
  samples_seed_ = mix(mix(options.seed) ^ (std::uint64_t{day} << 32));
}

ClickWorld::Weights ClickWorld::weights_of(std::size_t field, std::uint64_t id) const {
  const std::uint64_t key = mix(mix(options_.seed) ^ mix((std::uint64_t{field} << 40) ^ id));
  Draws now(key), later(mix(key));
  const double angle = options_.drift * day_, here = std::cos(angle), there = std::sin(angle);
  const auto turned = [&](double deviation) {
    const double first = now.normal(), second = angle == 0 ? 0 : later.normal();
    return static_cast<float>(deviation * (here * first + there * second));
  };
  Weights weights;
  weights.first = turned(options_.deviation);
  for (float& factor : weights.factors) factor = turned(options_.factor_deviation);
  return weights;
}

ClickWorld::Field ClickWorld::make_field(std::size_t field) const {
  const double growth = std::pow(static_cast<double>(options_.largest_field) / options_.smallest_field,
                                 static_cast<double>(field) / (kFields - 1));
  const auto count = static_cast<std::size_t>(std::llround(options_.smallest_field * growth));
  Field result;
  std::vector<double> shares(count);
  double total = 0;
  for (std::size_t rank = 0; rank < count; ++rank) {
    // The rank's id is replaced every 1 / new_ids days, each rank's at another time.
    const std::uint64_t drawn = mix(mix(options_.seed + field) ^ rank);
    const auto times =
        static_cast<std::uint64_t>(options_.new_ids * day_ + static_cast<double>(drawn >> 11) * 0x1p-53);
    constexpr int kRankBits = 20;
    const std::uint64_t number = (times << kRankBits) | rank;
    SHOAL_CHECK(number >> 32 == 0, InvalidInput, "generated data: by day ", day_, " an id was replaced ",
                times, " times, more than the 4095 that 32 bits have room for");
    result.ids.push_back(scattered(static_cast<std::uint32_t>(number)));
    result.weights.push_back(weights_of(field, result.ids.back()));
    total += shares[rank] = std::pow(static_cast<double>(rank + 1), -options_.zipf);
  }
  result.of_missing = weights_of(field, CriteoParser::kMissing);

  std::vector<std::uint32_t> small, large;
  for (std::size_t rank = 0; rank < count; ++rank) {
    shares[rank] *= static_cast<double>(count) / total;
    (shares[rank] < 1 ? small : large).push_back(static_cast<std::uint32_t>(rank));
  }
  constexpr double kWhole = 0x1p32;
  result.keeps.assign(count, std::uint64_t{1} << 32);
  result.others.resize(count);
  while (!small.empty() && !large.empty()) {
    const std::uint32_t rank = small.back(), other = large.back();
    small.pop_back();
    result.keeps[rank] = static_cast<std::uint64_t>(shares[rank] * kWhole);
    result.others[rank] = other;
    shares[other] -= 1 - shares[rank];
    if (shares[other] < 1) {
      large.pop_back();
      small.push_back(other);
    }
  }
  return result;
}

ClickSample ClickWorld::sample(std::uint64_t index) const {
  Draws draws(mix(samples_seed_ ^ mix(index)));
  ClickSample sample;
  double first = 0;
  std::array<double, kFactors> sums = {}, squares = {};
  for (std::size_t f = 0; f < kFields; ++f) {
    const Field& field = fields_[f];
    const Weights* weights = &field.of_missing;
    sample.ids[f] = CriteoParser::kMissing;
    if (options_.gaps == 0 || draws.uniform() >= options_.gaps) {
      const std::uint64_t drawn = draws.next();
      std::size_t rank = ((drawn >> 32) * field.ids.size()) >> 32;
      if ((drawn & 0xffffffffu) >= field.keeps[rank]) rank = field.others[rank];
      sample.ids[f] = field.ids[rank];
      weights = &field.weights[rank];
    }
    first += weights->first;
    for (std::size_t k = 0; k < kFactors; ++k) {
      const double factor = weights->factors[k];
      sums[k] += factor;
      squares[k] += factor * factor;
    }
  }
  sample.logit = bias_ + first;
  for (std::size_t k = 0; k < kFactors; ++k) sample.logit += (sums[k] * sums[k] - squares[k]) / 2;
  for (std::int32_t& integer : sample.integers) {
    // Small ones most, up to 2^16.
    const std::uint64_t drawn = draws.next();
    const bool is_missing = options_.gaps > 0 && draws.uniform() < options_.gaps;
    integer = is_missing ? -1 : static_cast<std::int32_t>((drawn >> 16 & 0xffff) >> (drawn & 0xf));
  }
  sample.is_click = draws.uniform() < 1 / (1 + std::exp(-sample.logit));
  return sample;
}

// Where the mean probability of the first samples is this share.
double ClickWorld::bias_for(double click_share) const {
  constexpr std::uint64_t kSamples = 1 << 14;
  std::vector<double> logits;
  for (std::uint64_t i = 0; i < kSamples; ++i) logits.push_back(sample(i).logit);
  double low = -64, high = 64;
  for (int step = 0; step < 50; ++step) {
    const double middle = (low + high) / 2;
    double clicks = 0;
    for (const double logit : logits) clicks += 1 / (1 + std::exp(-logit - middle));
    (clicks > click_share * kSamples ? high : low) = middle;
  }
  return (low + high) / 2;
}

void append_line(const ClickSample& sample, std::string& text) {
  text += sample.is_click ? '1' : '0';
  for (const std::int32_t integer : sample.integers) {
    text += '\t';
    std::array<char, 12> digits;
    if (integer >= 0)
      text.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), integer).ptr);
  }
  for (const std::uint64_t id : sample.ids) {
    text += '\t';
    if (id != CriteoParser::kMissing) text += hex(static_cast<std::uint32_t>(id));
  }
  text += '\n';
}

void append(const ClickSample& sample, const KeyLayout& layout, SlotBatch& batch) {
  batch.labels.push_back(sample.is_click ? 1.0f : 0.0f);
  for (const std::int32_t integer : sample.integers)
    batch.numbers.push_back(integer < 0 ? 0 : static_cast<float>(std::log1p(static_cast<double>(integer))));
  for (std::size_t slot = 0; slot < sample.ids.size(); ++slot)
    batch.keys.push_back(layout.key(slot, sample.ids[slot]));
}

}  // namespace shoal::data
