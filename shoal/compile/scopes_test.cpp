// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/scopes.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::compile;

static std::string refused(const ir::Scopes& scopes, const char* mesh, const char* text = "") {
  return error_of([&] {
    Plan plan = plan_from_text(text);
    apply(scopes, sharding::mesh_from_text(mesh), plan);
  });
}

static const ir::Scopes kTwo = {.stages = {{2, "at a.cpp:1"}, {2, "at a.cpp:2"}}, .splits = {}};
static const ir::Scopes kSplit = {.stages = {},
                                  .splits = {{{2, "at a.cpp:3"}, {"head.weight", "head.bias"}}}};

TEST_CASE("scopes that the mesh fits are part of the plan") {
  CHECK(refused(kTwo, "pipeline=2 shard=2") == "");
  CHECK(refused(kTwo, "pipeline=2 shard=4") == "");
  CHECK(refused({.stages = {{0, "at a.cpp:1"}}, .splits = {}}, "shard=2") == "");  // one stage is all of it
  Plan plan;
  apply(kSplit, sharding::mesh_from_text("shard=2 tensor=2"), plan);
  CHECK(to_text(plan) == "split head.weight\nsplit head.bias\n");
  CHECK(say_stages(&kTwo, sharding::mesh_from_text("pipeline=2 shard=2"), {}));
  CHECK_FALSE(say_stages(&kSplit, sharding::mesh_from_text("pipeline=2 shard=2"), {}));
}

TEST_CASE("on one device they say nothing") {
  Plan plan;
  for (const ir::Scopes& scopes : {kTwo, kSplit}) apply(scopes, {}, plan);
  CHECK(plan == Plan{});
}

TEST_CASE("scopes that contradict the mesh are refused, saying where") {
  CHECK(refused(kTwo, "pipeline=2 shard=3") ==
        "replicate(2) at a.cpp:1: each stage has 3 ranks of 'pipeline=2 shard=3', and stages of several "
        "sizes are not "
        "supported. Remedy: a number that divides 3, or none");
  CHECK(refused(kTwo, "shard=4") ==
        "replicate() at a.cpp:2 is the second of 2 stages, and no axis of 'shard=4' is a pipeline "
        "('pipeline'). Remedy: "
        "a pipeline degree that divides 2");
  CHECK(refused(kTwo, "pipeline=3 shard=2") ==
        "replicate() marks 2 stages (the last at a.cpp:2), and schedule 1f1b on 3 ranks of 'pipeline' has 3. "
        "Remedy: as "
        "many scopes as stages, or none: where stages begin is then found");
  CHECK(refused({.stages = {{0, "at a.cpp:1"}}, .splits = {}}, "pipeline=2") ==
        "replicate() marks 1 stage (the last at a.cpp:1), and schedule 1f1b on 2 ranks of 'pipeline' has 2. "
        "Remedy: as "
        "many scopes as stages, or none: where stages begin is then found");
  CHECK(refused(kSplit, "tensor=4") ==
        "split(2) at a.cpp:3: axis 'tensor' of 'tensor=4' has 4 ranks. Remedy: that number, or none");
  CHECK(refused(kSplit, "shard=2") ==
        "split(2) at a.cpp:3: no axis of 'shard=2' is there to split over: each cuts the batch or the "
        "model's stages, or "
        "plan says what lies how. Remedy: a tensor degree");
  CHECK(
      contains(refused(kSplit, "tensor=2", "parameter head.weight tensor=R"), "or plan says what lies how"));
}
