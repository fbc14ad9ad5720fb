// SPDX-License-Identifier: Apache-2.0
#include "shoal/schedule/schedule.h"

#include <doctest/doctest.h>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::schedule;

static std::string picture_of(std::string_view name, int ranks, int microbatches) {
  return to_text(named(name).build(ranks, microbatches));
}

TEST_CASE("gpipe does all forwards, then all backwards") {
  CHECK(picture_of("gpipe", 2, 3) ==
        "0F0 0F1 0F2 0B0 0B1 0B2\n"
        "1F0 1F1 1F2 1B0 1B1 1B2\n");
}

TEST_CASE("1f1b alternates after its warm-up") {
  CHECK(picture_of("1f1b", 3, 4) ==
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
}

TEST_CASE("every schedule runs to its end, at every size") {
  for (const Schedule& schedule : all())
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (int microbatches = 1; microbatches <= 16; ++microbatches) {
        CAPTURE(schedule.name);
        CAPTURE(ranks);
        CAPTURE(microbatches);
        const Timeline timeline = schedule.build(ranks, microbatches);
        CHECK(timeline.num_ranks() == ranks);
        CHECK(timeline.num_stages() == ranks * schedule.stages_per_rank);
        CHECK(timeline.num_microbatches() == microbatches);
        CHECK(error_of([&] { verify(timeline); }) == "");
      }
}

TEST_CASE("a name that no schedule has gets the list of them") {
  CHECK(error_of([] { named("2f2b"); }) == "there is no schedule '2f2b'; there are gpipe, 1f1b");
}

TEST_CASE("a size that a schedule cannot have is refused") {
  CHECK(error_of([] { named("1f1b").build(0, 4); }) ==
        "1f1b: 0 ranks and 4 micro-batches; one of each is the least");
  CHECK(error_of([] { named("1f1b").build(2, 4, 2); }) == "1f1b: 2 stages a rank; it has 1");
}

static Timeline broken(const std::vector<std::vector<Action>>& actions) {
  return {.rank_of_stage = {0, 1}, .actions = actions};
}

TEST_CASE("verify names the rank, the action and what it lacks") {
  const auto F = Kind::Forward;
  const auto B = Kind::Backward;
  const auto I = Kind::InputGradient;
  const auto error = [](const Timeline& timeline) { return error_of([&] { verify(timeline); }); };
  CHECK(error(broken({{{F, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}})) == "");
  CHECK(error(broken({{{F, 0, 0}, {B, 0, 0}}, {{B, 1, 0}, {F, 1, 0}}})) ==
        "schedule: no rank can go on; each waits: rank 0 at 0B0 for 1I0, rank 1 at 1B0 for 1F0");
  CHECK(error(broken({{{F, 0, 0}, {I, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}})) == "schedule: rank 0 never does 0W0");
  CHECK(error(broken({{{F, 0, 0}, {B, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}})) ==
        "schedule: rank 0, 0B0: done before");
  CHECK(error(broken({{{F, 0, 0}, {B, 0, 0}, {I, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}})) ==
        "schedule: rank 0, 0I0: done before");
  CHECK(error(broken({{{F, 0, 0}, {F, 1, 0}, {B, 0, 0}}, {{B, 1, 0}}})) ==
        "schedule: rank 0, 1F0: stage 1 is on rank 1");
  CHECK(error(broken({{{F, 0, 0}, {F, 2, 0}, {B, 0, 0}}, {{B, 1, 0}}})) ==
        "schedule: rank 0, 2F0: there are 2 stages");
  Timeline elsewhere = broken({{{F, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}});
  elsewhere.rank_of_stage[1] = 2;
  CHECK(error(elsewhere) == "schedule: stage 1 is on rank 2 of 2");
}

TEST_CASE("ranks that wait for each other in a circle are a deadlock") {
  const auto F = Kind::Forward;
  const auto B = Kind::Backward;
  // Rank 0 wants the first gradient before it makes the second forward, rank 1 both forwards first.
  const Timeline timeline = broken({{{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}},  //
                                    {{F, 1, 0}, {F, 1, 1}, {B, 1, 0}, {B, 1, 1}}});
  CHECK(error_of([&] { verify(timeline); }) ==
        "schedule: no rank can go on; each waits: rank 0 at 0B0 for 1I0, rank 1 at 1F1 for 0F1");
}
