// SPDX-License-Identifier: Apache-2.0
#include "shoal/schedule/csv.h"

#include <doctest/doctest.h>

#include <optional>
#include <random>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::schedule;

TEST_CASE("a timeline is the same after it was written and read, a pair as PyTorch writes one") {
  for (const Schedule& schedule : all())
    for (const int microbatches : {1, 5, 8}) {
      Timeline timeline = schedule.build(4, microbatches);
      timeline.note = "";
      CHECK(from_csv(to_csv(timeline), "a.csv") == timeline);
    }
  CHECK(to_csv(named("dualpipev").build(1, 2)) == "0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1\n");
}

TEST_CASE("empty cells, blanks and Windows' line ends are nothing") {
  CHECK(from_csv("0F0, ,0B0,\r\n,1F0,1B0\r\n\r\n", "a.csv") == named("1f1b").build(2, 1));
}

static std::string csv_error(std::string_view text) {
  return error_of([&] { from_csv(text, "a.csv"); });
}

TEST_CASE("a file that is no schedule is refused with row, rank and action") {
  CHECK(csv_error("\n\n") == "schedule a.csv: it has no row");
  CHECK(
      csv_error("0F0,0B0\n1F0,1X0\n") ==
      "schedule a.csv: row 2, rank 1, cell 2 \"1X0\" is not STAGE, F, B, I or W, and MICROBATCH, as in 0F3; "
      "sends and receives follow from the order");
  for (const std::string word :
       {"1SEND_F0", "1F", "F0", "-1F0", "1F0x", "0F99999999999", "(0F0;1B0)", "0F0;1B0"})
    CHECK(csv_error(word).starts_with("schedule a.csv: row 1, rank 0, cell 1 \"" + word + "\" is not STAGE"));
  CHECK(csv_error("0F0,0B2000000\n") ==
        "schedule a.csv: row 1, rank 0, cell 2 \"0B2000000\" is beyond the stages and micro-batches that 2 "
        "cells "
        "can have");
  CHECK(csv_error("0F0,0B0\n\n1F0,1B0\n") == "schedule a.csv: row 2, rank 1 has no action");
  CHECK(csv_error("0F0,0B0\n2F0,2B0\n") == "schedule a.csv: no row has an action of stage 1");
  CHECK(csv_error("0F0,0B0\n1F0\n") == "schedule a.csv: row 2, rank 1 never does 1B0");
  CHECK(csv_error("0F0,0B0\n1F0,0F1\n") ==
        "schedule a.csv: row 2, rank 1, action 2 '0F1': stage 0 is on rank 0");
}

TEST_CASE("a file that is damaged anywhere is refused, or is a schedule") {
  std::mt19937 draw(1);
  const auto below = [&](std::size_t count) { return draw() % count; };
  int runs = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = to_csv(all()[below(all().size())].build(2, 3));
    const std::string_view letters = "FBIW0123456789,;()\n &";
    for (std::size_t edits = 1 + below(3); edits > 0; --edits)
      text.replace(below(text.size()), below(3), below(2), letters[below(letters.size())]);
    std::optional<Timeline> timeline;
    const std::string error = error_of([&] { timeline = from_csv(text, "a.csv"); });
    if (!timeline) {
      CHECK(error.starts_with("schedule a.csv: "));
      continue;
    }
    ++runs;
    CHECK(error_of([&] { verify(*timeline); }) == "");
    CHECK(from_csv(to_csv(*timeline), "a.csv") == *timeline);
  }
  CHECK(runs > 20);
}

TEST_CASE("a file that cannot run says how many micro-batches it can") {
  CHECK(csv_error("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1B2,1F2\n") ==
        "schedule a.csv: row 1, rank 0, action 6 '0B2': waits for 1I2 or 1B2 for ever; so does rank 1 at 1B2 "
        "for "
        "1F2; of 3 micro-batches it can run the first 2");
}

TEST_CASE("a file runs as many micro-batches as it has, or fewer") {
  const std::string text = to_csv(named("1f1b").build(2, 8));
  CHECK(from_csv(text, "a.csv", 8) == from_csv(text, "a.csv"));
  const Timeline fewer = from_csv(text, "a.csv", 5);
  CHECK(fewer.actions == named("1f1b").build(2, 5).actions);
  CHECK(fewer.note == "schedule a.csv: of its 8 micro-batches the first 5");
  CHECK(error_of([&] { from_csv(text, "a.csv", 9); }) ==
        "schedule a.csv: it has no 9 micro-batches; 8 is the nearest that it can run");
  // What is wrong with those that are left out does not matter.
  CHECK(from_csv("0F0,0B0,0F1,0B1,0F2", "a.csv", 2).num_microbatches() == 2);
  CHECK(error_of([&] { from_csv("0F0,0B0,0F2,0B2", "a.csv", 2); }).find("never does 0F1") !=
        std::string::npos);
  CHECK(error_of([&] {
          from_csv("0F0,0B0,0F2,0B2", "a.csv");
        }).ends_with("; of 3 micro-batches it can run the first 1"));
}
