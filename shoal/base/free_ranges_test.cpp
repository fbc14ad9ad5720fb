// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/free_ranges.h"

#include <doctest/doctest.h>

using shoal::FreeRanges;

TEST_CASE("what is given back joins what is free before and behind it") {
  FreeRanges ranges;
  CHECK_FALSE(ranges.take(1));
  ranges.give(0, 100);
  CHECK(ranges.take(40) == 0);
  CHECK(ranges.take(40) == 40);
  CHECK_FALSE(ranges.take(40));
  CHECK(ranges.take(20) == 80);
  ranges.give(0, 40);
  ranges.give(80, 20);
  CHECK_FALSE(ranges.take(60));  // 40 and 20, apart
  ranges.give(40, 40);
  CHECK(ranges.take(100) == 0);
}

TEST_CASE("the first range that is large enough is taken") {
  FreeRanges ranges;
  ranges.give(50, 10);
  ranges.give(0, 5);
  ranges.give(20, 20);
  CHECK(ranges.take(10) == 20);
  CHECK(ranges.take(10) == 30);
  CHECK(ranges.take(10) == 50);
  CHECK(ranges.take(5) == 0);
}
