// SPDX-License-Identifier: Apache-2.0
#include "shoal/schedule/schedule.h"

#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <vector>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::schedule;

static std::string picture_of(std::string_view name, int ranks, int microbatches, int stages = 0) {
  return to_text(named(name).build(ranks, microbatches, stages));
}

TEST_CASE("gpipe does all forwards, then all backwards") {
  CHECK(picture_of("gpipe", 2, 3) ==
        "0F0 0F1 0F2 0B0 0B1 0B2\n"
        "1F0 1F1 1F2 1B0 1B1 1B2\n");
}

TEST_CASE("looped_bfs does all micro-batches of a stage before the rank's next stage") {
  CHECK(picture_of("looped_bfs", 2, 2) ==
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n"
        "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1\n");
  CHECK(picture_of("looped_bfs", 1, 2, 3) == "0F0 0F1 1F0 1F1 2F0 2F1 2B0 2B1 1B0 1B1 0B0 0B1\n");
}

TEST_CASE("1f1b alternates after its warm-up") {
  CHECK(picture_of("1f1b", 3, 4) ==
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
}

TEST_CASE("eager_1f1b warms up with twice as many") {
  CHECK(picture_of("eager_1f1b", 3, 6) ==
        "0F0 0F1 0F2 0F3 0F4 0B0 0F5 0B1 0B2 0B3 0B4 0B5\n"
        "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1B4 1B5\n"
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2F4 2B4 2F5 2B5\n");
}

TEST_CASE("interleaved_1f1b changes stage after a round of as many micro-batches as ranks") {
  CHECK(picture_of("interleaved_1f1b", 2, 4) ==
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3\n");
}

TEST_CASE("interleaved_1f1b makes rounds larger where they do not come out even, and says so") {
  CHECK(picture_of("interleaved_1f1b", 2, 3) ==
        "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2\n"
        "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2\n"
        "interleaved_1f1b: 3 micro-batches are not a multiple of 2 ranks: rounds of up to 3, which keep more "
        "activations\n");
  CHECK(named("interleaved_1f1b").build(4, 3).note ==
        "interleaved_1f1b: 3 micro-batches are fewer than 4 ranks, which wait for each other between the "
        "stages of a rank");
}

TEST_CASE("zb_h1 is 1f1b, each rank one more weight gradient behind") {
  CHECK(picture_of("zb_h1", 3, 4) ==
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3\n"
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3\n");
}

TEST_CASE("zb_h2 is eager_1f1b, each rank two more weight gradients behind") {
  CHECK(picture_of("zb_h2", 2, 4) ==
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
        "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3\n");
}

TEST_CASE("zbv goes down and up again, and splits every backward") {
  CHECK(picture_of("zbv", 2, 3) ==
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2\n"
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2\n");
}

TEST_CASE("dualpipev pairs forwards with backwards of other micro-batches") {
  CHECK(picture_of("dualpipev", 2, 4) ==
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3&3B1 3F2&0B0 3B2 3F3&0B1 3B3 0I2 0W2 0I3 0W3\n"
        "1F0 2F0 1F1 2F1 1F2 2B0 2F2&1B0 1F3&2B1 2F3&1B1 2B2 1B2 2I3 1I3 2W3 1W3\n");
}

TEST_CASE("below its least a schedule leaves out the micro-batches that are not there, and says so") {
  CHECK(picture_of("zbv", 2, 1) ==
        "0F0 3F0 3I0 3W0 0I0 0W0\n"
        "1F0 2F0 2I0 2W0 1I0 1W0\n"
        "zbv: fewer micro-batches than fill its ranks (1 of 3): they wait for each other\n");
  CHECK(picture_of("dualpipev", 2, 3) ==  // a pair whose other half is gone is none
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3B1 3F2&0B0 3B2 0B1 0I2 0W2\n"
        "1F0 2F0 1F1 2F1 1F2 2B0 2F2&1B0 2B1 1B1 2B2 1B2\n"
        "dualpipev: fewer micro-batches than fill its ranks (3 of 4): they wait for each other\n");
  const Timeline pair = {.rank_of_stage = {0},
                         .actions = {{{Kind::Forward, 0, 0, true}, {Kind::Backward, 0, 1}}}};
  CHECK(first_microbatches(pair, 1).actions == std::vector<std::vector<Action>>{{{Kind::Forward, 0, 0}}});
  CHECK(named("zb_h2").build(4, 6).note ==
        "zb_h2: fewer micro-batches than fill its ranks (6 of 7): they wait for each other");
  CHECK(named("zb_h2").build(4, 7).note.empty());
}

static void at_every_size(const std::function<void(const Schedule&, const Timeline&, int, int)>& check) {
  for (const Schedule& schedule : all())
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (int microbatches = 1; microbatches <= 16; ++microbatches)
        for (int stages = 1; stages <= 3; ++stages) {
          if (stages != schedule.stages_per_rank && !schedule.more_stages) continue;
          CAPTURE(schedule.name);
          CAPTURE(ranks);
          CAPTURE(microbatches);
          const Timeline timeline = schedule.build(ranks, microbatches, stages);
          CHECK(timeline.num_stages() == ranks * stages);
          check(schedule, timeline, ranks, microbatches);
        }
}

TEST_CASE("every schedule runs to its end, at every size") {
  at_every_size([](const Schedule&, const Timeline& timeline, int ranks, int microbatches) {
    CHECK(timeline.num_ranks() == ranks);
    CHECK(timeline.num_microbatches() == microbatches);
    CHECK(error_of([&] { verify(timeline); }) == "");
  });
}

TEST_CASE("every schedule adds the gradients of a stage up in the order of micro-batches") {
  at_every_size([](const Schedule&, const Timeline& timeline, int, int) {
    std::vector<int> next(static_cast<std::size_t>(timeline.num_stages()), 0);
    for (const auto& row : timeline.actions)
      for (const Action& action : row)
        if (action.kind == Kind::Backward || action.kind == Kind::WeightGradient)
          CHECK(action.microbatch == next[static_cast<std::size_t>(action.stage)]++);
  });
}

TEST_CASE("a pair is a forward and a backward of other micro-batches that do not need each other") {
  at_every_size([](const Schedule& schedule, const Timeline& timeline, int, int microbatches) {
    for (const auto& row : timeline.actions)
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (!row[i].with_next) continue;
        CHECK(schedule.name == "dualpipev");
        REQUIRE(i + 1 < row.size());
        CHECK(row[i].kind == Kind::Forward);
        CHECK(row[i + 1].kind == Kind::Backward);
        CHECK(row[i].microbatch > row[i + 1].microbatch);
        CHECK(row[i].microbatch < microbatches);
      }
  });
}

// How many of a rank are between F and its backward, and between I and W, after every action.
static void between(const std::vector<Action>& row, const std::function<void(int, int)>& check) {
  std::set<std::pair<int, int>> forwards, inputs;
  for (const Action& action : row) {
    const std::pair place(action.stage, action.microbatch);
    if (action.kind == Kind::Forward) forwards.insert(place);
    if (action.kind == Kind::Backward || action.kind == Kind::InputGradient) forwards.erase(place);
    if (action.kind == Kind::InputGradient) inputs.insert(place);
    if (action.kind == Kind::WeightGradient) inputs.erase(place);
    check(static_cast<int>(forwards.size()), static_cast<int>(inputs.size()));
  }
}

TEST_CASE("1f1b keeps p - i micro-batches on rank i, however many there are") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const std::vector<Held> held = most_held(named("1f1b").build(ranks, 16));
    for (int rank = 0; rank < ranks; ++rank)
      CHECK(held[static_cast<std::size_t>(rank)] == Held{.backward = ranks - rank});
  }
}

// The W that follows an I directly takes away what the I has left; between the two a rank has one more.
TEST_CASE("zb_h1 keeps on rank i what p - i backwards and i weight gradients need") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const Timeline timeline = named("zb_h1").build(ranks, 24);
    const std::vector<Held> held = most_held(timeline);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      CHECK(held[index] == Held{.backward = ranks - rank, .weights = rank});
      between(timeline.actions[index], [&](int backward, int weights) {
        CHECK(backward <= ranks - rank);
        CHECK(weights <= (rank == 0 ? 0 : rank + 1));
        CHECK(backward + weights <= ranks);
      });
    }
  }
}

TEST_CASE("zbv keeps two halves of p micro-batches on every rank, dualpipev one half more") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int rank = 0; rank < ranks; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      CHECK(most_held(named("zbv").build(ranks, 24))[index] == Held{.backward = 2 * ranks});
      CHECK(most_held(named("dualpipev").build(ranks, 24))[index] == Held{.backward = 2 * ranks + 1});
    }
}

TEST_CASE("a name that no schedule has gets the list of them") {
  CHECK(
      error_of([] { named("2f2b"); }) ==
      "there is no schedule '2f2b'; there are gpipe, looped_bfs, 1f1b, eager_1f1b, interleaved_1f1b, zb_h1, "
      "zb_h2, zbv, dualpipev");
}

TEST_CASE("a size that a schedule cannot have is refused") {
  CHECK(error_of([] { named("1f1b").build(0, 4); }) ==
        "1f1b: 0 ranks and 4 micro-batches; one of each is the least");
  CHECK(error_of([] { named("zbv").build(2, 0); }) ==
        "zbv: 2 ranks and 0 micro-batches; one of each is the least");
  CHECK(error_of([] { named("zbv").build(2, 4, 3); }) == "zbv: 3 stages a rank; it has 2");
  CHECK(error_of([] { named("looped_bfs").build(2, 4, -1); }) ==
        "looped_bfs: -1 stages a rank; it has 2 or any number from 1");
}

TEST_CASE("a schedule says whether it splits a backward") {
  for (const auto& schedule : schedule::all()) {
    bool splits = false;
    for (const auto& row : schedule.build(4, 8).actions)
      for (const auto& action : row) splits = splits || action.kind == Kind::WeightGradient;
    CAPTURE(schedule.name);
    CHECK(schedule.splits_backward == splits);
  }
}
