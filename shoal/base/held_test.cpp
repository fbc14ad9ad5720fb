// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/held.h"

#include <doctest/doctest.h>

using namespace shoal;

TEST_CASE("the most held is of one time, not the sum of each holder's most") {
  most_held();
  const std::int64_t before = held(Holder::Tensors) + held(Holder::Communicators);
  const std::int64_t now = hold(Holder::Communicators, 100);
  CHECK(now == held(Holder::Communicators));
  hold(Holder::Tensors, 10);
  hold(Holder::Communicators, -100);
  hold(Holder::Tensors, 60);
  CHECK(most_held() == before + 110);
  CHECK(most_held() == before + 70);  // what there still was when it was last asked
  hold(Holder::Communicators, 5);
  CHECK(most_held() == before + 75);
  hold(Holder::Tensors, -70);
  hold(Holder::Communicators, -5);
}
