// SPDX-License-Identifier: Apache-2.0
// Split, run, merge gives what one device gives.
#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>

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

static std::string plan(const std::string& name) {
  std::ifstream file("recipes/plans/" + name + ".plan");
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_CASE("tensor and sequence parallel ranks train as one device does") {
  for (const auto& model : cases::kModels) {
    const std::string name = model.name;
    if (name != "gpt2" && name != "llama") continue;
    for (const char* kind : {"_tensor", "_sequence"})
      for (const int ranks : {2, 3, 4}) {
        const auto outcome = matrix::run(model, {.name = "tensor", .tensor = ranks, .plan = plan(name + kind)});
        CAPTURE(name + kind);
        CAPTURE(ranks);
        CAPTURE(outcome.worst.worst);
        CHECK(outcome.error == "");
        CHECK(outcome.worst.largest <= 1);
      }
  }
}

TEST_CASE("strategies nest") {
  for (const auto& model : cases::kModels) {
    const std::string name = model.name;
    const bool has_plan = name == "gpt2" || name == "llama";
    std::vector<matrix::Strategy> strategies = {
        {.name = "hybrid", .replicate = 2, .shard = 2},
        {.name = "hybrid, ZeRO-1", .replicate = 2, .shard = 3, .zero_stage = 1},
        {.name = "hybrid, ZeRO-2", .replicate = 3, .shard = 2, .zero_stage = 2},
        {.name = "ZeRO-3", .shard = 8},
    };
    if (has_plan) {
      strategies.push_back({.name = "data x tensor", .replicate = 2, .tensor = 2, .plan = plan(name + "_tensor")});
      strategies.push_back({.name = "ZeRO-3 x tensor", .shard = 2, .tensor = 2, .plan = plan(name + "_tensor")});
      strategies.push_back(
          {.name = "hybrid x sequence", .replicate = 2, .shard = 2, .tensor = 2, .plan = plan(name + "_sequence")});
    }
    for (const auto& strategy : strategies) {
      const auto outcome = matrix::run(model, strategy);
      CAPTURE(name + ", " + strategy.name);
      CAPTURE(outcome.worst.worst);
      CHECK(outcome.error == "");
      CHECK(outcome.worst.largest <= 1);
    }
  }
}
