// SPDX-License-Identifier: Apache-2.0
// A model cut into stages trains as one device does: every model, on every number of stages, by every schedule
// that the trainer runs, alone and with the other ways to train on many ranks.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "tests/parallel/matrix.h"

using namespace shoal;

static void check(const cases::ModelCase& model, const matrix::Strategy& strategy) {
  const std::string name = concat(model.name, ", ", strategy.name, ", ", strategy.schedule, ", ",
                                  strategy.pipeline, " stages x ", strategy.replicate, " x ", strategy.shard,
                                  " x ", strategy.tensor, " by ", strategy.microbatches);
  CAPTURE(name);
  const auto outcome = matrix::run(model, strategy);
  CAPTURE(outcome.worst.worst);
  CHECK(outcome.error == "");
  CHECK(outcome.unsaid == "");
  CHECK(outcome.messages > 0);
  CHECK(outcome.worst.largest <= 1);
}

TEST_CASE("every model in two, three and four stages") {
  for (const auto& model : cases::kModels)
    for (const int stages : {2, 3, 4})
      for (const int microbatches : {1, 2, 5})
        if (microbatches > 1 || stages == 2)  // one is cut into as many as there are stages, of three samples
          check(model, {.name = "pipeline",
                        .microbatches = microbatches,
                        .pipeline = stages,
                        .schedule = microbatches == 2 ? "gpipe" : "1f1b"});
}

TEST_CASE("a pipeline of ranks that train otherwise too") {
  for (const auto& model : cases::kModels) {
    check(model, {.name = "data", .replicate = 2, .microbatches = 3, .pipeline = 2});
    check(model, {.name = "ZeRO-1", .shard = 2, .zero_stage = 1, .microbatches = 3, .pipeline = 2});
    check(model, {.name = "ZeRO-2", .shard = 2, .zero_stage = 2, .microbatches = 3, .pipeline = 2});
    check(model, {.name = "ZeRO-3", .shard = 2, .zero_stage = 3, .microbatches = 3, .pipeline = 2});
    const std::string name = model.name;
    if (name != "gpt2" && name != "llama") continue;
    check(model, {.name = "tensor", .tensor = 2, .plan = name + "_tensor", .microbatches = 2, .pipeline = 2});
    check(model, {.name = "data x ZeRO x tensor",
                  .replicate = 2,
                  .shard = 2,
                  .tensor = 2,
                  .plan = name + "_tensor",
                  .microbatches = 2,
                  .pipeline = 2});
  }
}
