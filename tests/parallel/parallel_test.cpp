// SPDX-License-Identifier: Apache-2.0
// Split, run, merge gives what one device gives.
#include <doctest/doctest.h>

#include "shoal/base/error.h"
#include "tests/parallel/matrix.h"

using namespace shoal;

TEST_CASE("data parallel ranks train as one device does") {
  for (const auto& model : cases::kModels)
    for (const int ranks : {2, 3}) {
      const auto outcome = matrix::run(model, {.name = "data parallel", .replicate = ranks});
      CAPTURE(std::string(model.name));
      CAPTURE(ranks);
      CAPTURE(outcome.worst.worst);
      CHECK(outcome.error == "");
      CHECK(outcome.worst.largest <= 1);
    }
}

TEST_CASE("ranks that store parts train as one device does") {
  for (const auto& model : cases::kModels)
    for (const int stage : {1, 2, 3}) {
      const auto outcome = matrix::run(model, {.name = "ZeRO", .shard = 2, .zero_stage = stage});
      CAPTURE(std::string(model.name));
      CAPTURE(stage);
      CAPTURE(outcome.worst.worst);
      CHECK(outcome.error == "");
      CHECK(outcome.worst.largest <= 1);
    }
}
