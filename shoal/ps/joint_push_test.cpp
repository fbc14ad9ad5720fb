// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/joint_push.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::ps;

using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

static Push part(std::uint32_t worker, const Keys& keys, const Floats& gradients, std::uint64_t round = 7) {
  return {.keys = keys, .gradients = gradients, .worker = worker, .workers = 2, .round = round};
}

TEST_CASE("the sum of a push is by worker, in whatever order its parts come") {
  const Keys first = {1, 2}, second = {3, 2};
  const Floats a = {1, 1, 2, 1e8f}, b = {3, 3, 5, -1e8f};
  for (const bool swapped : {false, true}) {
    JointPush joint;
    const std::array parts = {part(0, first, a), part(1, second, b)};
    joint.add(parts[swapped ? 1 : 0], {.client = 10, .sequence = 1}, "t");
    CHECK(!joint.is_complete());
    joint.add(parts[swapped ? 0 : 1], {.client = 11, .sequence = 4}, "t");
    REQUIRE(joint.is_complete());
    const Push sum = joint.sum(2);
    CHECK(std::ranges::equal(sum.keys, Keys{1, 2, 3}));
    CHECK(std::ranges::equal(sum.gradients.of<float>(), Floats{1, 1, 7, 0, 3, 3}));
    CHECK(sum.shows.empty());  // as one push
  }
}

TEST_CASE("shows and clicks add up") {
  JointPush joint;
  const Keys keys = {1};
  const Floats gradients = {1, 1}, shows = {3}, clicks = {2};
  Push one = part(0, keys, gradients), other = part(1, keys, gradients);
  one.shows = other.shows = shows;
  one.clicks = clicks;
  joint.add(one, {.client = 10, .sequence = 1}, "t");
  joint.add(other, {.client = 11, .sequence = 1}, "t");
  const Push sum = joint.sum(2);
  CHECK(sum.shows[0] == 6);
  CHECK(sum.clicks[0] == 2);
}

TEST_CASE("a part that comes again is no second one, and other rounds are told") {
  JointPush joint;
  const Keys keys = {1};
  const Floats gradients = {1, 1};
  joint.add(part(0, keys, gradients), {.client = 10, .sequence = 1}, "t");
  joint.add(part(0, keys, gradients), {.client = 10, .sequence = 1}, "t");
  CHECK(!joint.is_complete());
  CHECK(error_of([&] { joint.add(part(1, keys, gradients, 8), {.client = 11, .sequence = 1}, "t"); }) ==
        "ps: table \"t\": worker 1 of 2 pushes round 8, and others of 2 wait with round 7; in sync mode all "
        "workers make the same steps");
  CHECK(error_of([&] { joint.add(part(0, keys, gradients), {.client = 12, .sequence = 1}, "t"); }) ==
        "ps: table \"t\": there are two workers 0 of 2");
  joint.add(part(1, keys, gradients), {.client = 11, .sequence = 1}, "t");
  CHECK(std::ranges::equal(joint.sum(2).gradients.of<float>(), Floats{2, 2}));
  CHECK(joint.makers().size() == 2);
  joint.clear();
  CHECK(joint.is_empty());
}
