// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/capture_cost.h"

#include <doctest/doctest.h>

namespace capture_cost_test {

using namespace shoal;
using namespace std::chrono_literals;

namespace {

// Runs of 10 ms each, in every `each`-th of which a graph was captured in 2 ms.
struct Runs {
  train::CaptureCost::Time now{1h};
  train::CaptureCost cost{[this] { return now; }};
  int done = 0;

  std::optional<std::string> run(int each, std::int64_t forgotten = 0) {
    now += 10ms;
    if (++done % each == 0) cost.count(2ms);
    return cost.after_run(forgotten);
  }
  // The first run with something to say, of so many; 0: none.
  int first_word(int runs, int each) {
    for (int i = 1; i <= runs; ++i)
      if (run(each)) return done;
    return 0;
  }
};

}  // namespace

TEST_CASE("captures above a twentieth of the time are told of once, and those of a start are not") {
  Runs runs;
  CHECK(runs.first_word(2000, 1) == 256);
  CHECK(runs.first_word(2000, 1) == 0);

  Runs start;
  CHECK(start.first_word(128, 1) == 0);
  CHECK(start.first_word(4000, 5) == 0);  // 4 %

  Runs later;
  CHECK(later.first_word(256, 1000) == 0);
  CHECK(later.first_word(1000, 2) == 512);
}

TEST_CASE("it says what it has seen, and whether graphs had to go") {
  Runs runs;
  for (int i = 0; i < 255; ++i) runs.run(2);
  const auto text = runs.run(2, 7).value();
  CHECK(text.find("in the last 128 runs 64 batches") != std::string::npos);
  CHECK(text.find("10 % of the time; 7 graphs have gone") != std::string::npos);
  Runs others;
  for (int i = 0; i < 255; ++i) others.run(2);
  CHECK(others.run(2).value().find("graphs have gone") == std::string::npos);
}

}  // namespace capture_cost_test
