// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/click_world.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "shoal/base/error_test.h"
#include "shoal/data/click_metrics.h"

using namespace shoal;
using namespace shoal::data;

static ClickReport oracle_of(const ClickWorld& world, std::uint64_t samples) {
  ClickMetrics metrics;
  std::vector<float> logits, labels;
  for (std::uint64_t i = 0; i < samples; ++i) {
    const ClickSample sample = world.sample(i);
    logits.push_back(static_cast<float>(sample.logit));
    labels.push_back(sample.is_click ? 1.0f : 0.0f);
  }
  metrics.add(logits, labels);
  return metrics.report();
}

// Small fields, so that few samples say much.
static ClickWorldOptions small() { return {.seed = 7, .smallest_field = 4, .largest_field = 1000}; }

TEST_CASE("the best possible AUC is about 0.87, true logits are calibrated, and clicks have their share") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const ClickReport report = oracle_of(ClickWorld({.seed = seed}), 60'000);
    CHECK(report.auc > 0.85);
    CHECK(report.auc < 0.89);
    CHECK(std::fabs(report.calibration - 1) < 0.02);
    CHECK(std::fabs(static_cast<double>(report.positives) / 60'000 - 0.25) < 0.015);
  }
}

TEST_CASE("a sample is a function of seed, day and index, and differs when one of these does") {
  const auto lines = [](std::uint64_t seed, std::uint32_t day) {
    ClickWorldOptions options = small();
    options.seed = seed;
    const ClickWorld world(options, day);
    std::string text;
    for (std::uint64_t i = 50; i-- > 0;) append_line(world.sample(i), text);
    return text;
  };
  CHECK(lines(7, 1) == lines(7, 1));
  CHECK(lines(7, 1) != lines(8, 1));
  CHECK(lines(7, 1) != lines(7, 2));
}

TEST_CASE("a line reads back as the sample, with gaps too") {
  ClickWorldOptions options = small();
  for (const double gaps : {0.0, 0.3}) {
    options.gaps = gaps;
    const ClickWorld world(options);
    const CriteoParser parser;
    SlotBatch read, made;
    std::size_t missing = 0;
    for (std::uint64_t i = 0; i < 500; ++i) {
      const ClickSample sample = world.sample(i);
      std::string line;
      append_line(sample, line);
      line.pop_back();
      REQUIRE(!parser.add(line, read));
      append(sample, {}, made);
      missing += static_cast<std::size_t>(std::ranges::count(sample.ids, CriteoParser::kMissing));
    }
    CHECK(read == made);
    CHECK(static_cast<double>(missing) / (500 * 26) == doctest::Approx(gaps).epsilon(0.1));
  }
}

TEST_CASE("ids follow Zipf's law") {
  const ClickWorld world({});
  CHECK(world.ids_of_field(0) == 10);
  CHECK(world.ids_of_field(25) == 200'000);
  std::map<std::uint64_t, int> counts;
  constexpr int kSamples = 40'000;
  for (int i = 0; i < kSamples; ++i) ++counts[world.sample(static_cast<std::uint64_t>(i)).ids[0]];
  REQUIRE(counts.size() == 10);
  std::vector<double> shares;
  for (const auto& [id, count] : counts) shares.push_back(static_cast<double>(count) / kSamples);
  std::ranges::sort(shares, std::greater());
  double total = 0;
  for (int rank = 1; rank <= 10; ++rank) total += std::pow(rank, -1.1);
  for (int rank = 1; rank <= 10; ++rank)
    CHECK(shares[static_cast<std::size_t>(rank - 1)] ==
          doctest::Approx(std::pow(rank, -1.1) / total).epsilon(0.1));
}

TEST_CASE("a day brings its share of new ids, none of which was there before") {
  ClickWorldOptions options = small();
  options.zipf = 0;  // so that every id is seen
  options.new_ids = 0.1;
  std::set<std::uint64_t> ever;
  for (std::uint32_t day = 0; day < 15; ++day) {
    const ClickWorld world(options, day);
    std::set<std::uint64_t> today;
    for (std::uint64_t i = 0; i < 15'000; ++i) today.insert(world.sample(i).ids[25]);
    CHECK(today.size() == 1000);
    const auto fresh =
        static_cast<double>(std::ranges::count_if(today, [&](auto id) { return !ever.contains(id); }));
    if (day > 0) CHECK(fresh == doctest::Approx(100).epsilon(0.35));
    ever.insert(today.begin(), today.end());
  }
}

TEST_CASE("drift turns what ids mean from day to day, and leaves how much there is to know") {
  ClickWorldOptions options = small();
  options.drift = 0.3;
  const ClickWorld today(options);
  const auto correlation = [&](std::uint32_t day) {
    // The same ids, as the same rank is drawn from the same numbers: only weights differ.
    options.zipf = 1.1;
    const ClickWorld other(options, day);
    double ab = 0, aa = 0, bb = 0, a_sum = 0, b_sum = 0, count = 0;
    std::map<std::uint64_t, std::pair<double, double>> logits;
    for (std::uint64_t i = 0; i < 30'000; ++i) {
      const ClickSample a = today.sample(i), b = other.sample(i);
      auto& [first, first_count] = logits[a.ids[0]];
      first += a.logit;
      ++first_count;
      auto& [second, second_count] = logits[b.ids[0] | (std::uint64_t{1} << 40)];
      second += b.logit;
      ++second_count;
    }
    for (const auto& [id, sum] : logits) {
      if ((id >> 40) != 0 || !logits.contains(id | (std::uint64_t{1} << 40))) continue;
      const auto& there = logits.at(id | (std::uint64_t{1} << 40));
      const double a = sum.first / sum.second, b = there.first / there.second;
      ab += a * b, aa += a * a, bb += b * b, a_sum += a, b_sum += b, ++count;
    }
    const auto covariance = [&](double xy, double x, double y) { return xy / count - x * y / count / count; };
    return covariance(ab, a_sum, b_sum) /
           std::sqrt(covariance(aa, a_sum, a_sum) * covariance(bb, b_sum, b_sum));
  };
  const double near = correlation(1), far = correlation(5);
  CHECK(near > 0.8);
  CHECK(far < 0.6);
  CHECK(oracle_of(ClickWorld(options, 5), 30'000).auc ==
        doctest::Approx(oracle_of(today, 30'000).auc).epsilon(0.05));
}

TEST_CASE("options out of bounds are refused by name") {
  const auto message = [](const ClickWorldOptions& options, std::uint32_t day = 0) {
    return error_of([&] { ClickWorld(options, day); });
  };
  CHECK(message({.smallest_field = 0}) == "generated data: smallest_field is 0, not 1 or more");
  CHECK(message({.largest_field = 5}) == "generated data: largest_field is 5, not smallest_field to 1048576");
  CHECK(message({.zipf = -1}) == "generated data: zipf is -1, not 0 to 10");
  CHECK(message({.click_share = 1}) == "generated data: click_share is 1, not between 0 and 1");
  CHECK(message({.gaps = 1}) == "generated data: gaps is 1, not 0 to 1");
  CHECK(message({.drift = 2}) == "generated data: drift is 2, not 0 to 1.57");
  CHECK(message({.smallest_field = 4, .largest_field = 8, .new_ids = 0.9}, 10'000)
            .starts_with("generated data: by day 10000 an id was replaced 9000 times"));
}
