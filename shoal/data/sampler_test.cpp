// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/data/prefetch.h"

using namespace shoal;
using namespace shoal::data;

TEST_CASE("each sample comes exactly once an epoch, in another order each, whatever the number") {
  for (const std::int64_t num_samples : {1, 2, 3, 10, 255, 256, 257, 5000}) {
    CAPTURE(num_samples);
    const Order order = {.seed = 3, .num_samples = num_samples};
    std::vector<std::vector<std::int64_t>> epochs;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      auto samples = samples_of(order, epoch * num_samples, num_samples);
      epochs.push_back(samples);
      CHECK(std::set(samples.begin(), samples.end()).size() == samples.size());
      CHECK(std::ranges::max(samples) == num_samples - 1);
    }
    if (num_samples > 10) CHECK(epochs[0] != epochs[1]);
    if (num_samples > 10) CHECK(epochs[0] != samples_of({4, num_samples}, 0, num_samples));
  }
}

TEST_CASE("a shuffled order leaves no sample near its place") {
  const Order order = {.seed = 1, .num_samples = 10000};
  double moved = 0;
  std::int64_t neighbours = 0;
  for (std::int64_t at = 0; at < order.num_samples; ++at) {
    moved += std::abs(static_cast<double>(sample_at(order, at) - at));
    neighbours += std::abs(sample_at(order, at) - sample_at(order, at + 1)) == 1;
  }
  CHECK(moved / 10000 == doctest::Approx(10000 / 3.0).epsilon(0.05));  // of two places drawn by chance
  CHECK(neighbours < 20);
}

TEST_CASE("a run that goes on with other ranks in the middle of an epoch sees each sample once") {
  const Order order = {.seed = 5, .num_samples = 103};
  constexpr std::int64_t kBatch = 12;
  std::multiset<std::int64_t> seen;
  std::int64_t position = 0;
  int step = 0;
  for (; position + kBatch <= order.num_samples; position += kBatch, ++step) {
    const int ranks = step < 3 ? 4 : step < 6 ? 5 : 1;
    std::vector<std::int64_t> of_all_ranks;
    for (int rank = 0; rank < ranks; ++rank)
      for (const std::int64_t sample : samples_of(order, position, kBatch, rank, ranks))
        of_all_ranks.push_back(sample);
    CHECK(of_all_ranks == samples_of(order, position, kBatch));
    seen.insert(of_all_ranks.begin(), of_all_ranks.end());
  }
  for (const std::int64_t sample : samples_of(order, position, order.num_samples - position))
    seen.insert(sample);
  CHECK(seen.size() == 103);
  CHECK(std::set(seen.begin(), seen.end()).size() == 103);
}

TEST_CASE("windows make every token but the first a target once") {
  constexpr std::int64_t kLength = 10;
  CHECK(num_windows(10, kLength) == 1);
  CHECK(num_windows(18, kLength) == 1);
  CHECK(num_windows(19, kLength) == 2);
  for (std::int64_t window = 0; window < 5; ++window)
    CHECK(begin_of_window(window + 1, kLength) + 1 == begin_of_window(window, kLength) + kLength);
}

TEST_CASE("a text shorter than a window is an error that names the key") {
  CHECK_THROWS_WITH_AS(
      num_windows(9, 10),
      "the text has 9 tokens, fewer than the 10 of one window (training.seq_len + 1): use more text "
      "or a smaller training.seq_len",
      Error);
}

TEST_CASE("what threads make ahead comes in order, and no more than is asked for") {
  std::atomic<std::int64_t> most = 0;
  {
    Prefetcher<std::int64_t> squares(
        [&](std::int64_t index) {
          for (std::int64_t seen = most; seen < index && !most.compare_exchange_weak(seen, index);) {
          }
          return index * index;
        },
        7, 3, 4);
    for (std::int64_t index = 7; index < 200; ++index) {
      CHECK(squares.next() == index * index);
      CHECK(most < index + 1 + 4);
    }
  }
  CHECK(most >= 199);
}

TEST_CASE("what goes wrong on a thread is thrown where its item was wanted, and the others stay") {
  Prefetcher<int> items(
      [](std::int64_t index) -> int {
        SHOAL_CHECK(index != 2, InvalidInput, "item 2 is bad");
        return static_cast<int>(index);
      },
      0, 2, 8);
  CHECK(items.next() == 0);
  CHECK(items.next() == 1);
  CHECK_THROWS_WITH_AS(items.next(), "item 2 is bad", Error);
  CHECK(items.next() == 3);
  CHECK(items.seconds_waited() >= 0);
}
