// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "shoal/base/error_test.h"
#include "shoal/schedule/schedule.h"

using namespace shoal;
using namespace shoal::schedule;

constexpr auto F = Kind::Forward;
constexpr auto B = Kind::Backward;
constexpr auto I = Kind::InputGradient;
constexpr auto W = Kind::WeightGradient;

// On two ranks with a stage each.
static std::string error_in(const std::vector<std::vector<Action>>& actions, int second_stage_on = 1) {
  return error_of([&] { verify({.rank_of_stage = {0, second_stage_on}, .actions = actions}); });
}

TEST_CASE("verify names the rank, the action and what is wrong") {
  CHECK(error_in({{{F, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {I, 1, 0}, {W, 1, 0}}}) == "");
  CHECK(error_in({{{F, 0, 0}, {I, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}}) == "schedule: rank 0 never does 0W0");
  CHECK(error_in({{{F, 0, 0}, {W, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}}) == "schedule: rank 0 never does 0I0");
  CHECK(error_in({{{F, 0, 0}, {B, 0, 0}}, {{F, 1, 0}}}) == "schedule: rank 1 never does 1B0");
  CHECK(error_in({{{F, 0, 0}, {F, 0, 2}, {B, 0, 0}, {B, 0, 2}}, {{F, 1, 0}, {B, 1, 0}}}) ==
        "schedule: rank 0 never does 0F1");
  CHECK(error_in({{{F, 0, 0}, {B, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}}) ==
        "schedule: rank 0, action 3 '0B0': done before");
  CHECK(error_in({{{F, 0, 0}, {B, 0, 0}, {I, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}}) ==
        "schedule: rank 0, action 3 '0I0': done before");
  CHECK(error_in({{{F, 0, 0}, {F, 1, 0}, {B, 0, 0}}, {{B, 1, 0}}}) ==
        "schedule: rank 0, action 2 '1F0': stage 1 is on rank 1");
  CHECK(error_in({{{F, 0, 0}, {F, 2, 0}, {B, 0, 0}}, {{B, 1, 0}}}) ==
        "schedule: rank 0, action 2 '2F0': there are 2 stages");
  CHECK(error_in({{{F, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}}, 2) ==
        "schedule: rank 2 has stage 1, but there are 2 ranks");
  CHECK(error_in({{}, {}}) == "schedule: rank 0 never does 0F0");
}

TEST_CASE("an action before what it needs is waited for in vain") {
  CHECK(error_in({{{F, 0, 0}, {B, 0, 0}}, {{B, 1, 0}, {F, 1, 0}}}) ==
        "schedule: rank 0, action 2 '0B0': waits for 1I0 or 1B0 for ever; so does rank 1 at 1B0 for 1F0");
  CHECK(error_in({{{F, 0, 0}, {W, 0, 0}, {I, 0, 0}}, {{F, 1, 0}, {B, 1, 0}}}) ==
        "schedule: rank 0, action 2 '0W0': waits for 0I0 or 0B0 for ever");
}

TEST_CASE("ranks that wait for each other in a circle are a deadlock") {
  // Rank 0 wants the first gradient before it makes the second forward, rank 1 both forwards first.
  CHECK(error_in({{{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}},  //
                  {{F, 1, 0}, {F, 1, 1}, {B, 1, 0}, {B, 1, 1}}}) ==
        "schedule: rank 0, action 2 '0B0': waits for 1I0 or 1B0 for ever; so does rank 1 at 1F1 for 0F1");
}
